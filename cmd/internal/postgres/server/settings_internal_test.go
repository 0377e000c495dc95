package server

import "testing"

// TestWhatIsOnTheCommandLineIsRefused: a parameter that primacy sets itself would be taken, and
// silently not be so.
func TestWhatIsOnTheCommandLineIsRefused(t *testing.T) {
	for major := oldest; major <= newest; major++ {
		for _, one := range (&Server{directory: &directory{version: Version{Major: major}}}).fixed() {
			if _, err := Parameters(map[string]string{one.name: "other"}); err == nil {
				t.Errorf("%s can be set in the configuration", one.name)
			}
		}
	}
}

// TestWordsOfASwitch: PostgreSQL takes each beginning of a word that says on or off.
func TestWordsOfASwitch(t *testing.T) {
	for _, off := range []string{"off", "OF", "f", "Fals", "false", "n", "no", "0", " off "} {
		if _, err := Parameters(map[string]string{"fsync": off}); err == nil {
			t.Errorf("fsync = %q is taken", off)
		}
	}
	for _, on := range []string{"on", "On", "t", "TRUE", "y", "yes", "1"} {
		if _, err := Parameters(map[string]string{"FSYNC": on, "hot_standby": on}); err != nil {
			t.Errorf("%q: %v", on, err)
		}
	}
}

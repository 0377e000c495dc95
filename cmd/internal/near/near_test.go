package near

import "testing"

func TestWord(t *testing.T) {
	names := []string{"ttl", "store", "stop-timeout", "retry_on"}
	for key, want := range map[string]string{"stroe": "store", "STOP_TIMEOUT": "stop-timeout", "x": "", "tl": "ttl",
		"stop-timout": "stop-timeout", "": "", "TLL": "ttl", "retry-on": "retry_on", "port": ""} {
		if got := Word(key, names); got != want {
			t.Errorf("%q: got %q, want %q", key, got, want)
		}
	}
}

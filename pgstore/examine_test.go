package pgstore

import "testing"

func TestBestEffort(t *testing.T) {
	t.Parallel()
	sound := settings{fsync: "on", pages: "on", commit: "on"}
	for want, change := range map[string]func(*settings){
		"":                                  func(*settings) {},
		"a failover to a standby that lags": func(s *settings) { s.followers = 1 },
		"a crash of the machine":            func(s *settings) { s.fsync = "off" },
		"a failover to a standby that lags, or a crash of the machine": func(s *settings) { s.followers, s.pages = 2, "off" },
	} {
		st := sound
		change(&st)
		if got := st.bestEffort(); got != want {
			t.Errorf("bestEffort of %+v = %q, want %q", st, got, want)
		}
	}
	st := sound
	st.followers, st.standbys = 1, "*" // writes wait for it
	if got := st.bestEffort(); got != "" {
		t.Errorf("bestEffort with a synchronous standby = %q", got)
	}
}

//go:build linux

package pgtorture

import (
	"fmt"
	"regexp"
	"time"
)

// tells returns nil once `primacy postgres list` has said what matches, to a person who asks again
// and again.
func (r *round) tells(want string) error {
	o, ok := r.keeper.(*ours)
	if !ok {
		return nil
	}
	is, text := regexp.MustCompile(want), ""
	for end := time.Now().Add(tellWithin); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		text, _ = o.cli(r.cluster, 10*time.Second, "postgres", "list", "--cluster", scope)
		if is.MatchString(text) {
			return nil
		}
	}
	return fmt.Errorf("list does not say within %v what matches %q:\n%s", tellWithin, want, text)
}

// tellWithin is how long list may take: a person types it more than once,
// and a machine may be busy.
const tellWithin = 20 * time.Second

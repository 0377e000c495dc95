package etcdtest_test

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/primacy-go/primacy/internal/etcdtest"
)

// The servers are what they say they are. It runs before all other tests, so that building them (minutes, on a fresh machine) does not
// take the processor from tests of time.
func TestTheServersAreBuilt(t *testing.T) {
	for _, version := range []string{etcdtest.V35, etcdtest.V36, etcdtest.V37} {
		out, err := exec.Command(etcdtest.Binary(t, version), "--version").CombinedOutput()
		if err != nil || !strings.Contains(string(out), "etcd Version: "+version) {
			t.Errorf("etcd %s says: %s, %v", version, out, err)
		}
	}
	if out, err := exec.Command(etcdtest.Etcdctl(t), "version").CombinedOutput(); err != nil || !strings.Contains(string(out), "etcdctl version: ") {
		t.Errorf("etcdctl says: %s, %v", out, err)
	}
}

//go:build linux

package main

import (
	"bytes"
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// etcdCall makes one call of etcd's JSON form, and returns the status and the answer.
func etcdCall(t *testing.T, addr, path, body string) (int, map[string]any) {
	t.Helper()
	client := &http.Client{Timeout: 10 * time.Second}
	resp, err := client.Post("http://"+addr+"/v3/"+path, "application/json", bytes.NewBufferString(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var a map[string]any
	if err := json.NewDecoder(resp.Body).Decode(&a); err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, a
}

// etcdAddr returns where a server answers etcd's clients.
func etcdAddr(s *side) string {
	s.tells("serving etcd's election, lock and lease calls on ")
	return regexp.MustCompile(`lease calls on (\S+)`).FindStringSubmatch(s.err.String())[1]
}

// TestServeAnswersEtcdsClients has a client of etcd's lead beside `primacy run`, in one line.
func TestServeAnswersEtcdsClients(t *testing.T) {
	w := newWorld(t)
	s := w.serve("side", "--etcd-api", "127.0.0.1:0", "--ttl", "2s")
	s.tells("warning: the store is etcd")
	addr := etcdAddr(s)
	_, granted := etcdCall(t, addr, "lease/grant", `{"TTL":"3"}`)
	lease, _ := granted["ID"].(string)
	code, won := etcdCall(t, addr, "election/campaign", `{"name":"bg==","lease":"`+lease+`","value":"dg=="}`) // n, v
	leader, _ := won["leader"].(map[string]any)
	if code != 200 || leader["lease"] != lease {
		t.Fatalf("campaign: %d, %v", code, won)
	}
	w.start("leader", "n").ends(0).says("etcd-")
	p := w.start("run", "n", "--", "sh", "-c", "echo works; sleep 60")
	w.start("status", "n").ends(0).says("etcd-", "n")
	p.prints("works") // the client of etcd's fell silent
	if code, a := etcdCall(t, addr, "election/leader", `{"name":"bg=="}`); code != 200 ||
		a["kv"].(map[string]any)["lease"] == lease {
		t.Errorf("leader: %d, %v", code, a)
	}
	p.signal(syscall.SIGTERM).ends(143)
	s.signal(syscall.SIGTERM).ends(0)
}

func TestServeGuardsItsEtcdAPI(t *testing.T) {
	w := newWorld(t)
	w.start("serve", "--socket", "none", "--listen", "127.0.0.1:0", "--etcd-api",
		"0.0.0.0:0").ends(exitUsage).inOneLine().complains("--etcd-api", "--token-file")
	w.start("serve", "--socket", "none", "--listen", "127.0.0.1:0", "--etcd-api",
		"nonsense").ends(exitUsage).inOneLine().complains("--etcd-api")
}

// TestTheEtcdPageHolds types the commands of docs/etcd-api.md.
func TestTheEtcdPageHolds(t *testing.T) {
	text, err := os.ReadFile("../../docs/etcd-api.md")
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t)
	addr := etcdAddr(w.serve("side", "--etcd-api", "127.0.0.1:0"))
	want := map[string]string{"lease/grant": `"ID":"77"`, "election/campaign": `"lease":"77"`,
		"lease/keepalive": `"TTL":"15"`, "election/leader": `"value":"aG9zdDE="`, "lease/revoke": `"header"`}
	for _, m := range regexp.MustCompile(`(?m)^curl .*/v3/(\S+) .*$`).FindAllStringSubmatch(string(text), -1) {
		out, err := exec.Command("sh", "-c", strings.ReplaceAll(m[0], "127.0.0.1:2378", addr)).Output()
		if err != nil || want[m[1]] == "" || !strings.Contains(string(out), want[m[1]]) {
			t.Errorf("%s: %s, %v; want %s", m[0], out, err, want[m[1]])
		}
		delete(want, m[1])
	}
	if len(want) != 0 {
		t.Errorf("not on the page: %v", want)
	}
}

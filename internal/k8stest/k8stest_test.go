package k8stest

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/primacy-go/primacy/internal/servertest"
)

// TestTheServerIsBuilt builds the server where the real one is asked for, before tests by the clock
// run.
func TestTheServerIsBuilt(t *testing.T) {
	if os.Getenv("KUBE_APISERVER") != "real" {
		t.Skip("KUBE_APISERVER=real builds kube-apiserver, for minutes, once")
	}
	out, err := exec.Command(Binary(t), "--version").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "v"+Version) {
		t.Fatalf("it says %s, %v", out, err)
	}
}

// ask sends one request and returns what of its answer does not differ from server to server.
func ask(t *testing.T, s *Server, token, method, path, body string) (line string, object map[string]any) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, s.URL+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	req.Header.Set("Content-Type", "application/json")
	resp, err := s.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(&object); err != nil {
		t.Fatalf("%s %s: %d: %v", method, path, resp.StatusCode, err)
	}
	line = fmt.Sprintf("%d %v", resp.StatusCode, object["reason"])
	if d, ok := object["details"].(map[string]any); ok && resp.StatusCode == 404 {
		line += fmt.Sprintf(" %v", d["kind"])
	}
	return line, object
}

// leaseText is a Lease in JSON.
func leaseText(name, uid, version, value string) string {
	return fmt.Sprintf(`{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{"name":%q,"uid":%q,
		"resourceVersion":%q,"labels":{"kind":"line"},"annotations":{"value":%q}},"spec":{"holderIdentity":"me"}}`,
		name, uid, version, value)
}

// script does the same to a server each time, and returns what it answered.
func script(t *testing.T, s *Server) (answers []string) {
	step := func(token, method, path, body string) map[string]any {
		line, object := ask(t, s, token, method, path, body)
		answers = append(answers, method+" "+strings.TrimPrefix(path, Leases)+": "+line)
		return object
	}
	do := func(method, path, body string) map[string]any { return step(UserToken, method, Leases+path, body) }
	version := func(o map[string]any) (uid, version string) {
		m := meta(o)
		return fmt.Sprint(m["uid"]), fmt.Sprint(m["resourceVersion"])
	}
	do("GET", "/a", "")
	uid, v1 := version(do("POST", "", leaseText("a", "", "", "1")))
	do("POST", "", leaseText("a", "", "", "1"))
	do("POST", "", leaseText("b", "", "7", "1"))
	_, v2 := version(do("PUT", "/a", leaseText("a", uid, v1, "2")))
	do("PUT", "/a", leaseText("a", uid, v1, "3"))
	do("PUT", "/a", leaseText("a", "00000000-0000-4000-8000-000000000000", v2, "3"))
	do("PUT", "/b", leaseText("a", uid, v2, "3"))
	do("PUT", "/a", leaseText("a", uid, v2, strings.Repeat("x", largest)))
	do("POST", "", leaseText("a.-b", "", "", "1"))
	do("POST", "?dryRun=All", leaseText("dry", "", "", "1"))
	do("GET", "/dry", "")
	do("DELETE", "/a", fmt.Sprintf(`{"preconditions":{"uid":%q,"resourceVersion":%q}}`, uid, v1))
	do("DELETE", "/a", fmt.Sprintf(`{"preconditions":{"uid":%q,"resourceVersion":%q}}`, uid, v2))
	do("DELETE", "/a", fmt.Sprintf(`{"preconditions":{"uid":%q,"resourceVersion":%q}}`, uid, v2))
	do("PUT", "/a", leaseText("a", uid, v2, "3")) // it is gone, and an update would make it: but for its uid
	do("GET", "/a", "")
	do("PUT", "/a", leaseText("a", "", v2, "3"))
	o := do("PUT", "/new", leaseText("new", "", "", "3"))
	if uid, _ := version(o); uid == "<nil>" {
		t.Error("an update made no Lease")
	}
	list := do("GET", "?labelSelector=kind%3Dline&limit=1", "")
	answers = append(answers, fmt.Sprint(len(list["items"].([]any)), meta(list)["continue"] != ""))
	list = do("GET", "?fieldSelector=metadata.name%3Dnew", "")
	answers = append(answers, fmt.Sprint(len(list["items"].([]any))))
	step(NobodyToken, "GET", Leases+"/a", "")
	step(NobodyToken, "GET", Leases+"?watch=1&fieldSelector=metadata.name%3Da", "")
	step("wrong", "GET", Leases+"/a", "")
	step(UserToken, "GET", strings.Replace(Leases, Namespace, "other", 1)+"/a", "")
	step(AdminToken, "GET", strings.Replace(Leases, Namespace, "other", 1)+"/a", "")
	step(AdminToken, "POST", strings.Replace(Leases, Namespace, "other", 1), leaseText("a", "", "", "1"))
	step(AdminToken, "GET", strings.Replace(Leases, "leases", "leashes", 1)+"/a", "")
	answers = append(answers, watch(t, s)...)
	return answers
}

// watch has a watch tell of what is there, and of changes.
func watch(t *testing.T, s *Server) (seen []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	begin := func(query string) *bufio.Scanner {
		req, err := http.NewRequestWithContext(ctx, "GET",
			s.URL+Leases+"?watch=1&fieldSelector=metadata.name%3Dw"+query, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+UserToken)
		resp, err := s.client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { resp.Body.Close() })
		events := bufio.NewScanner(resp.Body)
		events.Buffer(nil, 1<<20)
		return events
	}
	next := func(events *bufio.Scanner) map[string]any {
		if !events.Scan() {
			seen = append(seen, "the end")
			return nil
		}
		var e struct {
			Type   string
			Object map[string]any
		}
		if err := json.Unmarshal(events.Bytes(), &e); err != nil {
			t.Fatal(err)
		}
		seen = append(seen, fmt.Sprint(e.Type, " ", e.Object["code"]))
		return e.Object
	}
	_, o := ask(t, s, UserToken, "POST", Leases, leaseText("w", "", "", "1"))
	m := meta(o)
	fromNow, fromThere := begin(""), begin("&resourceVersion="+m["resourceVersion"].(string))
	next(fromNow)
	ask(t, s, UserToken, "POST", Leases, leaseText("other", "", "", "1"))
	ask(t, s, UserToken, "PUT", Leases+"/w", leaseText("w", m["uid"].(string), m["resourceVersion"].(string), "2"))
	next(fromNow)
	next(fromThere)
	ask(t, s, UserToken, "DELETE", Leases+"/w", "")
	next(fromNow)
	next(fromThere)
	next(begin("&timeoutSeconds=1&resourceVersion=" + m["resourceVersion"].(string)))
	return seen
}

func TestTheFakeAnswersAsTheServerDoes(t *testing.T) {
	servertest.Long(t, "race-library")
	t.Parallel()
	fake := script(t, StartFake(t))
	t.Log(strings.Join(fake, "\n"))
	real := Start(t)
	if !real.Real() {
		t.Skip("NOT TESTED: there is no kube-apiserver to compare it with")
	}
	for i, answer := range script(t, real) {
		if i >= len(fake) || fake[i] != answer {
			t.Errorf("the server answers %s, the fake %s", answer, fake[min(i, len(fake)-1)])
		}
	}
}

func TestAServerThatIsKilledComesBackWithItsLeases(t *testing.T) {
	t.Parallel()
	for _, s := range []*Server{StartFake(t), Start(t)} {
		s.Do("POST", Leases, leaseText("a", "", "", "1"))
		s.Kill()
		if _, _, err := s.try("GET", Leases+"/a", nil); err == nil {
			t.Error("it answers though it was killed")
		}
		s.Restart()
		if !bytes.Contains(s.Do("GET", Leases+"/a", ""), []byte(`"a"`)) {
			t.Error("the lease is gone")
		}
	}
}

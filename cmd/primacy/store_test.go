//go:build linux

package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/internal/etcdtest"
	"github.com/primacy-go/primacy/internal/pgtest"
	"github.com/primacy-go/primacy/internal/redistest"
	"github.com/primacy-go/primacy/internal/zktest"
	"github.com/primacy-go/primacy/open"
)

// swordfish is the password in the URLs of this file: it may show up nowhere.
const swordfish = "SWORDFISH"

// whole are the stores on which each verb does all it does on etcd.
var whole = map[string]func(t *testing.T) string{
	"postgres": func(t *testing.T) string {
		return withLogin(pgtest.Start(t, pgtest.Options{Password: swordfish}).URL())
	},
	"redis": func(t *testing.T) string {
		return withLogin(redistest.Start(t, redistest.Options{Password: swordfish, Persist: "always"}).URL())
	},
	"zookeeper": func(t *testing.T) string {
		return withLogin(strings.Replace(zktest.Start(t,
			zktest.Options{Config: []string{"maxSessionTimeout=120000"}}).URL(), "zk://",
			"zk://keeper:"+swordfish+"@", 1))
	},
}

// withLogin checks that a URL has the password, which the servers of these tests ask for.
func withLogin(url string) string {
	if !strings.Contains(url, swordfish) {
		panic("the test server's URL has no password: " + clip(url))
	}
	return url
}

func onStore(t *testing.T, url string) *world {
	w := plainWorld(t)
	w.store = url
	w.env = append(w.env, "PRIMACY_STORE="+url, "PRIMACY_TTL=20s")
	t.Cleanup(func() {
		// Whatever went wrong, an engineer can read the store's page without a prompt for a
		// password in it.
		if left := w.namesLeft(); len(left) > 0 && !t.Failed() {
			t.Errorf("left in the store: %v", left)
		}
	})
	return w
}

// namesLeft returns the names in which somebody still stands.
func (w *world) namesLeft() (names []string) {
	for _, st := range w.states() {
		names = append(names, st.Name)
	}
	return names
}

func (w *world) states() []stateJSON {
	w.Helper()
	var all []stateJSON
	for _, line := range strings.Split(strings.TrimSpace(w.start("status", "-o", "ndjson").ends(0).out.String()),
		"\n") {
		if line != "" {
			all = append(all, decode[stateJSON](w, line))
		}
	}
	return all
}

// awaitStand waits until so many stand for a name, 1 at least.
func (w *world) awaitStand(s *primacy.Session, name string, n int) {
	w.Helper()
	w.eventually(fmt.Sprintf("%d stand for %s", n, name), func() bool {
		st, err := s.Election(name).State(w.Context())
		return err == nil && st.Leader != nil && 1+len(st.Waiting) == n
	})
}

// TestVerbsOnEveryStore types each verb on each store that can do all of them.
func TestVerbsOnEveryStore(t *testing.T) {
	t.Parallel()
	for name, start := range whole {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := onStore(t, start(t))
			w.elections()
			w.locks()
			w.crons()
			w.sidecar()
			w.examined()
			if name == "postgres" { // which its server must say
				w.start("status", "--store", w.store+"&foo=bar").ends(exitUsage).inOneLine().complains(`"foo"`)
			}
		})
	}
}

// A Redis that has just started grants nothing until the largest TTL has passed: candidates wait,
// and nobody leads.
func TestWhoWaitsWhileNobodyLeads(t *testing.T) {
	t.Parallel()
	w := onStore(t, redistest.Start(t, redistest.Options{Persist: "always", Young: true}).URL())
	long := w.with("PRIMACY_TTL=5m") // nobody is to win before the test is over
	looking := w.session("looks")
	waits := func(name string, n int) {
		w.eventually(fmt.Sprintf("%d wait for %s", n, name), func() bool {
			st, err := looking.Election(name).State(t.Context())
			return err == nil && st.Leader == nil && len(st.Waiting) == n
		})
	}
	a := long.start("run", "--id", "a", "n", "true")
	waits("n", 1)
	b := long.start("run", "--id", "b", "n", "true").tells("b waits for n: nobody leads yet, 1 other waits")
	waits("n", 2)
	first := long.start("lock", "--id", "a", "m", "true")
	waits("m", 1)
	next := long.start("lock", "--id", "b", "m", "true")
	next.tells("b waits for the lock m: nobody holds it yet, 1 other waits")
	waits("m", 2)
	long.lockIsTaken(exitNotAcquired, "the lock m is not free: nobody holds it yet, 2 others wait",
		"-n", "m", "echo", "never")
	long.start("run", "--wait", "1", "o", "true").ends(exitNotAcquired).
		complains("not leading o after 1s, and nobody leads it: 'primacy doctor' says if the store lets nobody")
	w.start("leader", "n").ends(exitNo)
	w.start("status", "n").ends(exitNo).says("nobody leads n").says("waits")
	w.start("status").ends(0).says("(nobody)")
	w.start("resign", "n").ends(exitNo).complains("nobody leads")
	w.start("transfer", "n", "--to", "b").ends(exitNo).complains("nobody leads")
	for _, p := range []*prog{a, b, first, next} {
		p.signal(syscall.SIGTERM).ends(128 + 15)
	}
}

// elections stands two candidates up and moves the leadership about.
func (w *world) elections() {
	w.Helper()
	looking := w.session("looks")
	c := map[string]*prog{"a": w.start("run", "--id", "a", "n", "sh", "-c", stops).prints("up")}
	c["b"] = w.start("run", "--id", "b", "n", "sh", "-c", stops)
	w.awaitStand(looking, "n", 2)
	looks := w.start("observe", "n").prints("a")
	w.start("leader", "n").ends(0).says("a\n")
	w.start("leader", "n", "--is", "b").ends(exitNo)
	st := decode[stateJSON](w, w.start("status", "n", "-o", "json").ends(0).out.String())
	if st.Leader == nil || st.Leader.ID != "a" || len(st.Waiting) != 1 || st.Waiting[0].ID != "b" ||
		st.Waiting[0].Token <= st.Leader.Token {
		w.Fatalf("status: %+v, want a before b", st)
	}
	w.start("transfer", "n", "--to", "b").ends(0).says("b\n")
	c["a"].ends(exitResigned).says("bye\n")
	looks.prints("b")
	c["c"] = w.start("run", "--id", "c", "n", "sh", "-c", stops)
	w.awaitStand(looking, "n", 2)
	w.start("resign", "n", "--reason", "tired").ends(0)
	c["b"].ends(exitResigned)
	c["c"].prints("up")
	c["d"] = w.start("run", "--id", "d", "n", "sh", "-c", stops)
	w.awaitStand(looking, "n", 2)
	w.start("drain", "c").ends(0)
	c["c"].ends(exitResigned)
	c["d"].prints("up")
	// A supervisor that is killed: its guardian ends the lease, so the next one does not wait for
	// the ttl.
	c["e"] = w.start("run", "--id", "e", "--ttl", "60s", "n", "sh", "-c", stops)
	c["f"] = w.start("run", "--id", "f", "n", "sh", "-c", stops)
	w.awaitStand(looking, "n", 3)
	w.start("transfer", "n", "--to", "e").ends(0)
	c["e"].prints("up").signal(syscall.SIGKILL)
	c["f"].prints("up").signal(syscall.SIGTERM).ends(0)
	looks.signal(syscall.SIGINT)
	<-looks.exited
	for _, p := range c {
		p.keepsQuiet()
	}
	out := w.start("history", "n").ends(0).out.String()
	for _, want := range []string{"a", "b", "c", "d", "e", "f", "tired"} {
		if !strings.Contains(out, want) {
			w.Errorf("history lacks %q:\n%s", want, out)
		}
	}
}

// keepsQuiet checks that the store's password is in nothing that was said.
func (p *prog) keepsQuiet() {
	p.Helper()
	if strings.Contains(p.out.String()+p.err.String(), swordfish) {
		p.Errorf("%v: the password is in its output", p)
	}
}

// locks takes an exclusive lock, a shared one and a semaphore.
func (w *world) locks() {
	w.Helper()
	w.start("lock", "l", "echo", "held").ends(0).says("held\n")
	holds := w.start("lock", "l", "sh", "-c", stops).prints("up")
	w.start("lock", "-n", "l", "true").ends(exitNotAcquired)
	holds.signal(syscall.SIGTERM)
	<-holds.exited
	r1, r2 := w.start("lock", "-s", "rw", "sh", "-c", stops).prints("up"),
		w.start("lock", "-s", "rw", "sh", "-c", stops).prints("up")
	w.start("lock", "-n", "-x", "rw", "true").ends(exitNotAcquired)
	for _, p := range []*prog{r1, r2} {
		p.signal(syscall.SIGTERM)
		<-p.exited
	}
	s1, s2 := w.start("lock", "--slots", "2", "sem", "sh", "-c", stops).prints("up"),
		w.start("lock", "--slots", "2", "sem", "sh", "-c", stops).prints("up")
	w.start("lock", "-n", "--slots", "2", "sem", "true").ends(exitNotAcquired)
	for _, p := range []*prog{s1, s2} {
		p.signal(syscall.SIGTERM)
		<-p.exited
	}
}

// crons has two machines run one job each second: every instant once.
func (w *world) crons() {
	w.Helper()
	ran := filepath.Join(w.dir, "ran")
	file := w.cronFile("[jobs.j]\nschedule = \"* * * * * *\"\ncommand = \"echo $PRIMACY_CRON_INSTANT >> " + ran +
		"\"\n")
	a, b := w.start("cron", "--id", "ca", "--look", "500ms", "-f", file),
		w.start("cron", "--id", "cb", "--look", "500ms", "-f", file)
	w.eventually("three instants ran", func() bool {
		data, _ := os.ReadFile(ran)
		return strings.Count(string(data), "\n") >= 3
	})
	for _, p := range []*prog{a, b} {
		p.signal(syscall.SIGTERM)
		<-p.exited
	}
	data, err := os.ReadFile(ran)
	if err != nil {
		w.Fatal(err)
	}
	seen := map[string]bool{}
	for _, at := range strings.Fields(string(data)) {
		if seen[at] {
			w.Errorf("the instant %s ran twice: %s", at, data)
		}
		seen[at] = true
	}
	w.start("cron", "history", "j").ends(0).says("ok")
}

// sidecar serves HTTP and etcd's calls over the store.
func (w *world) sidecar() {
	w.Helper()
	etcd := freeAddr(w.T)
	socket := filepath.Join(w.dir, "s")
	p := w.start("serve", "--socket", socket, "--etcd-api", etcd).tells("serving etcd's")
	c := http.Client{Timeout: limit, Transport: &http.Transport{DialContext: func(ctx context.Context, _,
		_ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}}
	w.eventually("it is ready", func() bool {
		r, err := c.Get("http://localhost/readyz")
		if err != nil {
			return false
		}
		r.Body.Close()
		return r.StatusCode == http.StatusOK
	})
	lease := etcdLease(w, etcd)
	r, err := http.Post("http://"+etcd+"/v3/election/campaign", "application/json",
		strings.NewReader(`{"name":"ZWxlY3Rpb24=","value":"dmFsdWU=","lease":`+lease+`}`))
	if err != nil {
		w.Fatal(err)
	}
	body, _ := io.ReadAll(r.Body)
	r.Body.Close()
	if r.StatusCode != http.StatusOK || !strings.Contains(string(body), `"leader"`) {
		w.Errorf("etcd's campaign: %d %s", r.StatusCode, body)
	}
	if r, err = http.Post("http://"+etcd+"/v3/lease/revoke", "application/json",
		strings.NewReader(`{"ID":`+lease+`}`)); err != nil || r.StatusCode != http.StatusOK {
		w.Errorf("etcd's revoke: %v, %v", r, err)
	} else {
		r.Body.Close()
	}
	w.start("top", "--once").ends(0)
	p.signal(syscall.SIGTERM)
	<-p.exited
}

// etcdLease asks for a lease as etcd's clients do and returns its ID.
func etcdLease(w *world, addr string) string {
	w.Helper()
	r, err := http.Post("http://"+addr+"/v3/lease/grant", "application/json", strings.NewReader(`{"TTL":30}`))
	if err != nil {
		w.Fatal(err)
	}
	defer r.Body.Close()
	var got struct{ ID json.RawMessage }
	if err := json.NewDecoder(r.Body).Decode(&got); err != nil || len(got.ID) == 0 {
		w.Fatalf("etcd's grant: %v, %q", err, got.ID)
	}
	return string(got.ID)
}

// examined has the doctor look, and torture for a while.
func (w *world) examined() {
	w.Helper()
	p := w.start("doctor", "--clock-window", "3s", "--ttl", "60s", "-o", "json").ends(0)
	if !strings.Contains(p.out.String(), `"one leader: `) || strings.Contains(p.out.String(), `"failed"`) {
		w.Errorf("the doctor found: %s", p.out.String())
	}
	p.keepsQuiet()
	p = w.start("doctor", "--torture", "8s", "--ttl", "3s", "--candidates", "3").within(2 * limit)
	// on a busy machine too little may happen in 8 s to say more
	if code := p.wait(); code != 0 && code != exitNotAcquired {
		w.Errorf("%v: exit %d: %s", p, code, p.out.String())
	}
	p.says("two leaders at once  0\n").keepsQuiet()
}

// TestTheVerbsOnAQuorumOfRedis types them where there is neither a token nor a line: what cannot be
// is said in one line.
func TestTheVerbsOnAQuorumOfRedis(t *testing.T) {
	onlyInVerify(t)
	t.Parallel()
	var addrs []string
	for range 3 {
		addrs = append(addrs, redistest.Start(t, redistest.Options{Password: swordfish, Persist: "always"}).Addr())
	}
	// its warnings would be more than one line
	w := onStore(t, "redis+quorum://:"+swordfish+"@"+strings.Join(addrs, ",")+"?guard=off").with("PRIMACY_QUIET=true")
	a := w.start("run", "--id", "a", "n", "sh", "-c", stops).prints("up")
	b := w.start("run", "--id", "b", "n", "sh", "-c", stops)
	w.start("leader", "n").ends(0).says("a\n")
	w.start("transfer", "n", "--to", "b").ends(exitUsage).inOneLine()
	w.start("history", "n").ends(exitUsage).inOneLine().complains("keeps no history")
	w.start("lock", "-s", "rw", "true").ends(exitUsage).inOneLine()
	w.start("lock", "l", "sh", "-c", "echo ${PRIMACY_TOKEN-none}").ends(0).says("none\n")
	said := w.with("PRIMACY_QUIET=false").start("run", "tok", "true").ends(0).complains(" leads tok")
	if strings.Contains(said.err.String(), "under token") {
		t.Errorf("there are no tokens here: %s", said.err.String())
	}
	w.start("serve", "--socket", filepath.Join(w.dir, "s")).ends(exitUsage).inOneLine().complains("has no tokens")
	w.start("cron", "j", "* * * * *", "--", "true").ends(exitUsage).inOneLine()
	a.signal(syscall.SIGTERM).ends(0)
	b.prints("up").signal(syscall.SIGTERM).ends(0)
	var p *prog
	w.eventually("all three answer the doctor at once, as on a busy machine they may not", func() bool {
		p = w.start("doctor", "--clock-window", "3s", "--ttl", "30s") // no longer there
		<-p.exited
		return strings.Contains(p.out.String(), "majority: 3 of 3 servers answer")
	})
	p.ends(0).says("fencing tokens: nothing can refuse")
}

// TestAStoreThatRefusesUs is a wrong password on each store: one line, without it, and 121.
func TestAStoreThatRefusesUs(t *testing.T) {
	t.Parallel()
	for name, start := range whole {
		if name == "zookeeper" {
			continue // any user may come in there: what others have written is closed to him
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := plainWorld(t)
			url := strings.Replace(start(t), swordfish, "wrong-"+swordfish, 1)
			p := w.start("run", "--store", url, "n", "true").ends(exitUnreachable).inOneLine()
			if strings.Contains(p.err.String(), swordfish) {
				t.Errorf("the password is in %q", p.err.String())
			}
		})
	}
}

// TestNobodyAnswers is a port where nobody listens, for each scheme.
func TestNobodyAnswers(t *testing.T) {
	w := plainWorld(t)
	all := map[string]*prog{}
	for _, scheme := range open.Schemes {
		url := fmt.Sprintf("%s://u:%s@%s", scheme, swordfish, freeAddr(t))
		if scheme == "k8s" { // its URL names no host
			url = "k8s://?kubeconfig=" + aKubeconfig(t, "https://"+freeAddr(t), swordfish)
		}
		all[scheme] = w.start("leader", "n", "--store", url, "--timeout", "5s")
	}
	for scheme, p := range all {
		p.ends(exitUnreachable).complains("127.0.0.1:", "waiting for the store for up to 5s",
			"store unreachable for 5s")
		if strings.Contains(p.err.String(), swordfish) {
			t.Errorf("%s: the password is in %q", scheme, p.err.String())
		}
	}
}

// aKubeconfig writes a kubeconfig for a server and a token, and returns its path.
func aKubeconfig(t *testing.T, server, token string) string {
	path := filepath.Join(t.TempDir(), "config")
	text := fmt.Sprintf(`{current-context: a, contexts: [{name: a, context: {cluster: a, user: a}}],
clusters: [{name: a, cluster: {server: %q}}], users: [{name: a, user: {token: %q}}]}`, server, token)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestTheSchemaIsPrinted has an administrator create what the program's own user may not.
func TestTheSchemaIsPrinted(t *testing.T) {
	onlyInVerify(t)
	t.Parallel()
	server := pgtest.Start(t, pgtest.Options{})
	w := plainWorld(t)
	at := strings.Split(server.URL(), "@")[1]
	server.Exec("CREATE ROLE app LOGIN")
	server.Exec(w.start("schema", "--store", "postgres://app@"+at+"&schema=house").ends(0).out.String())
	w.start("run", "--store", "postgres://app@"+at+"&schema=house&migrate=false", "n", "echo",
		"led").ends(0).says("led\n")
	w.start("run", "--store", "postgres://app@"+at+"&schema=other", "n",
		"true").ends(exitUnreachable).inOneLine().complains("primacy schema")
	server.Exec("REVOKE SELECT ON ALL TABLES IN SCHEMA house FROM app")
	w.start("run", "--store", "postgres://app@"+at+"&schema=house&migrate=false", "n",
		"true").ends(exitUnreachable).inOneLine().complains("permission denied", "primacy schema --store")
	w.start("schema", "--store", "redis://h").ends(exitUsage).inOneLine().complains("has no schema")
}

// TestTheLinesOfTheStorePages types each command line of the stores' pages, at addresses where
// nobody listens: 121 says that all of it was understood.
func TestTheLinesOfTheStorePages(t *testing.T) {
	w := plainWorld(t)
	hosts := regexp.MustCompile(`(://)([^@/?' ]*@)?[^/?' ]+`)
	for _, page := range []string{"postgres", "redis", "redlock", "zookeeper"} {
		text, err := os.ReadFile("../../docs/" + page + ".md")
		if err != nil {
			t.Fatal(err)
		}
		lines := regexp.MustCompile(`(?m)^    primacy (run .*?)( +#.*)?$`).FindAllStringSubmatch(string(text), -1)
		if len(lines) == 0 {
			t.Errorf("docs/%s.md shows no primacy run", page)
		}
		for _, line := range lines {
			args := strings.Fields(strings.ReplaceAll(hosts.ReplaceAllString(line[1], "${1}${2}127.0.0.1:1"), "'", ""))
			for i, a := range args {
				if strings.HasPrefix(a, "./") {
					args[i] = "true"
				}
			}
			p := w.start(append([]string{args[0], "--timeout", "1s"}, args[1:]...)...).ends(exitUnreachable)
			if strings.Contains(p.err.String(), "PASSWORD") {
				t.Errorf("the password is in %q", p.err.String())
			}
		}
	}
}

// What stands in etcd, read and written past the program, over etcd's HTTP gateway.

// kv is a key in etcd. JSON has bytes in base64 and 64-bit numbers in strings, as Go's own encoding
// of []byte and etcd's.
type kv struct {
	Key            []byte `json:"key"`
	Value          []byte `json:"value"`
	Lease          string `json:"lease"`
	CreateRevision string `json:"create_revision"`
}

func (w *world) post(path string, in, out any) {
	w.Helper()
	var err error
	for began, late := time.Now(), false; time.Since(began) < limit; late = true {
		// Each try has a short limit, and may have happened although its answer came too late.
		if err = w.server.Post(path, in, out); err == nil || late && isDone(err) {
			return
		}
		if late, ok := errors.AsType[net.Error](err); !ok || !late.Timeout() {
			break
		}
	}
	w.Fatalf("etcd %s: %v", path, err)
}

// isDone says whether etcd refuses a request because the same one has happened.
func isDone(err error) bool {
	return strings.Contains(err.Error(), "already") || strings.Contains(err.Error(), "not found")
}

// keys returns the keys below the prefix, oldest first.
func (w *world) keys(prefix string) []kv {
	w.Helper()
	var out struct {
		Kvs []kv `json:"kvs"`
	}
	end := []byte(prefix)
	end[len(end)-1]++ // no prefix of ours ends in 0xff
	w.post("/v3/kv/range", map[string]any{"key": []byte(prefix), "range_end": end, "sort_order": "ASCEND",
		"sort_target": "CREATE"}, &out)
	return out.Kvs
}

// line returns the claims on a name that needs no escaping, oldest first.
func (w *world) line(name string) []kv {
	w.Helper()
	return w.keys(w.prefix + name + "/")
}

// awaitLine waits until so many stand in the line.
func (w *world) awaitLine(name string, n int) []kv {
	w.Helper()
	var line []kv
	w.eventually(strconv.Itoa(n)+" stand for "+name, func() bool { line = w.line(name); return len(line) == n })
	return line
}

func (w *world) put(key string, value []byte, lease string) {
	w.Helper()
	w.post("/v3/kv/put", map[string]any{"key": []byte(w.prefix + key), "value": value, "lease": lease}, nil)
}

func (w *world) delete(key string) {
	w.Helper()
	w.post("/v3/kv/deleterange", map[string]any{"key": []byte(w.prefix + key)}, nil)
}

// grant returns a new lease that nobody keeps alive.
func (w *world) grant(seconds int) string {
	w.Helper()
	var out struct {
		ID string `json:"ID"`
	}
	w.post("/v3/lease/grant", map[string]any{"TTL": seconds}, &out)
	return out.ID
}

func (w *world) revoke(lease string) {
	w.Helper()
	w.post("/v3/lease/revoke", map[string]any{"ID": lease}, nil)
}

// newHole returns a way to the server that accepts connections and says nothing.
func newHole(w *world) *etcdtest.Proxy {
	w.Helper()
	hole := etcdtest.NewProxy(w, w.server.Addr())
	hole.Hold()
	return hole
}

// What other programs, or an operator's hand, may leave in a line. It holds the line by etcd's own
// rules.
func foreignKeys() map[string]func(w *world, name string) (key string, value []byte, lease string) {
	binary := make([]byte, 4096)
	_, _ = rand.Read(binary)
	copy(binary, "\x1b[2J\x00\r\n\t")
	return map[string]func(*world, string) (string, []byte, string){
		"without-lease": func(w *world, n string) (string, []byte, string) {
			return n + "/something",
				[]byte("by hand"), "0"
		},
		"no-lease-in-key": func(w *world, n string) (string, []byte, string) {
			return n + "/not hex at all", []byte("x"), w.grant(600)
		},
		"someone-elses-lease": func(w *world, n string) (string, []byte, string) {
			l := w.grant(600)
			return n + "/" + asHex(w.grant(600)), []byte("x"), l
		},
		"binary": func(w *world, n string) (string, []byte, string) {
			return n + "/" + string(binary[:40]), binary,
				"0"
		},
		"megabyte": func(w *world, n string) (string, []byte, string) {
			return n + "/big", bytes.Repeat([]byte("M"), 1<<20), "0"
		},
		"empty": func(w *world, n string) (string, []byte, string) { return n + "/", nil, "0" },
		"deep":  func(w *world, n string) (string, []byte, string) { return n + "/a/b/../c", []byte("x"), "0" },
		"etcdctl": func(w *world, n string) (string, []byte, string) {
			l := w.grant(600)
			return n + "/" + asHex(l), []byte("web-1"), l
		},
		"bad-value": func(w *world, n string) (string, []byte, string) {
			return n + "/x", []byte("{\"owner\": \"\x1b]0;x\x07\xff"), "0"
		},
	}
}

func asHex(lease string) string {
	n, err := strconv.ParseInt(lease, 10, 64)
	if err != nil {
		return lease
	}
	return strconv.FormatInt(n, 16)
}

func TestAForeignKeyLeadsAsAnUnknownAndIsWaitedFor(t *testing.T) {
	w := newWorld(t)
	for name, claim := range foreignKeys() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := w.in(t)
			key, value, lease := claim(w, name)
			w.put(key, value, lease)
			token := w.line(name)[0].CreateRevision
			shows := func(p *prog) *prog {
				t.Helper()
				p.ends(0).says("another program")
				for _, r := range p.out.String() {
					if r != '\n' && !unicode.IsPrint(r) {
						t.Errorf("%v prints the control character %U", p, r)
					}
				}
				if len(p.out.String()) > 2000 || strings.Count(p.out.String(), "\n") > 30 {
					t.Errorf("%v prints %d bytes", p, len(p.out.String()))
				}
				return p
			}
			shows(w.start("status")).says(token)
			shows(w.start("status", name)).says("leader or lock holder", token)
			shows(w.start("leader", name))
			got := decode[stateJSON](w, w.start("leader", "-o", "json", name).ends(0).out.String())
			if got.Leader == nil || got.Leader.ID != "" || got.Leader.Token.String() != token || got.Leader.Note == "" {
				t.Errorf("leader -o json: %+v", got.Leader)
			}
			w.start("leader", "--is", "x", name).ends(exitNo)
			o := w.start("observe", name).prints("another program").prints(token)

			// One that is asked to resign cannot: told, not waited for. Nothing is lost, and nobody
			// jumps the line.
			if p := w.start("resign", name); p.wait() == 0 || p.wait() == exitNo {
				t.Errorf("resign: exit %d", p.wait())
			} else {
				p.inOneLine().complains("another program")
			}
			p := w.start("run", "--id", "me", name, "sh", "-c", "echo up; sleep 1000").tells("another program")
			w.awaitLine(name, 2)
			w.start("run", "-q", "--wait", "300ms", name, "echo", "never").ends(exitNotAcquired).inOneLine()
			line := w.awaitLine(name, 2)
			if !bytes.Equal(line[0].Value, value) || string(line[0].Key) != w.prefix+key {
				t.Errorf("the foreign claim has changed: %q", clip(string(line[0].Value)))
			}
			if p.out.String() != "" {
				t.Error("the command runs beside it")
			}
			w.delete(key)
			p.prints("up")
			o.prints("me leads")
			o.signal(2).ends(0)
			p.signal(15).ends(128 + 15)
		})
	}
}

// in returns the world for a subtest: what it starts ends with that.
func (w *world) in(t *testing.T) *world {
	n := *w
	n.T = t
	return &n
}

// A line of more than 4 MB (gRPC reads no more unless told), and records of sessions that are not
// ours.
func TestAForeignLineIsReadWhole(t *testing.T) {
	onlyInVerify(t)
	w := newWorld(t)
	for i := range 5 {
		w.put("n/"+strconv.Itoa(i), bytes.Repeat([]byte{byte(i)}, 1<<20), "0")
	}
	w.start("status", "n").ends(0).says("waits 4", "another program")
	w.start("status").ends(0).says("n ", " 4 ")
	got := decode[stateJSON](w, w.start("status", "-o", "json", "n").ends(0).out.String())
	if len(got.Waiting) != 4 || len(got.Waiting[3].Value) < 1<<20 {
		t.Errorf("status -o json: %d wait", len(got.Waiting))
	}
	p := w.start("run", "n", "echo", "up").tells("another program")
	w.awaitLine("n", 6)
	for i := range 5 {
		w.delete("n/" + strconv.Itoa(i))
	}
	p.ends(0).says("up")
}

func TestASessionRecordThatIsGarbage(t *testing.T) {
	w := newWorld(t)
	p := w.start("run", "--id", "me", "n", "sleep", "1000").tells("leads n")
	for _, k := range w.keys(w.prefix) {
		if key := strings.TrimPrefix(string(k.Key), w.prefix); !strings.HasPrefix(key, "n/") {
			w.put(key, []byte("\xff\x00{"), k.Lease)
		}
	}
	w.start("status", "n").ends(0).says("session record cannot be read")
	w.start("status").ends(0).says("another program, lease")
	p.signal(15).ends(128 + 15)
}

// A variable that is empty, most likely because another one was not set, is not the embedded store:
// each machine would have a leader of its own.
func TestAnEmptyStoreIsRefused(t *testing.T) {
	w := plainWorld(t)
	for _, verb := range [][]string{{"run", "n", "true"}, {"lock", "n", "true"}, {"status"}, {"leader", "n"}} {
		w.with("PRIMACY_STORE=").start(verb...).ends(exitUsage).complains("the store is empty").inOneLine()
		w.start(slices.Concat(verb[:1], []string{"--store", ""}, verb[1:])...).ends(exitUsage).
			complains("the store is empty").inOneLine()
	}
}

// Who has named no store learns that only this machine's candidates exclude each other.
func TestTheStoreThatNobodyNamedIsTold(t *testing.T) {
	w := plainWorld(t)
	const told = "only this user's processes on this machine exclude each other (embedded:"
	w.start("run", "n", "true").ends(0).complains(told)
	if p := w.start("run", "-q", "n", "true").ends(0); strings.Contains(p.err.String(), told) {
		t.Errorf("-q tells %q", p.err.String())
	}
	p := w.start("run", "--store", "embedded:"+filepath.Join(w.dir, "s"), "n", "true").ends(0)
	if strings.Contains(p.err.String(), told) {
		t.Errorf("who named the store is told %q", p.err.String())
	}
}

// The environment does not count for a member of postgres whose file names no store.
func TestAVariableThatNamesAnotherStoreIsNotEmpty(t *testing.T) {
	t.Setenv("PRIMACY_STORE", "etcd://127.0.0.1:1")
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	if _, err := (&app{}).embeddedDir(); err != nil {
		t.Error(err)
	}
}

package primacy_test

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
)

const (
	self      = "github.com/primacy-go/primacy"
	storeutil = self + "/internal/storeutil"
	register  = self + "/registerstore" // what k8sstore is made of
)

type pkg struct {
	ImportPath                         string
	Standard                           bool
	Imports, TestImports, XTestImports []string
	Deps                               []string
}

// goList lists packages, tests' imports included but not followed.
func goList(t *testing.T, args ...string) map[string]pkg {
	t.Helper()
	cmd := exec.Command("go",
		append([]string{"list", "-json=ImportPath,Standard,Imports,TestImports,XTestImports,Deps"}, args...)...)
	cmd.Stderr = t.Output()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	all := map[string]pkg{}
	for dec := json.NewDecoder(out); ; {
		var p pkg
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		all[p.ImportPath] = p
	}
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	return all
}

func standard(path string) bool {
	first, _, _ := strings.Cut(path, "/")
	return !strings.Contains(first, ".")
}

func isStore(path string) bool {
	return strings.HasPrefix(path, self+"/") && strings.HasSuffix(path, "store") &&
		strings.Count(path[len(self):], "/") == 1
}

// rule says why pkg must not import path, or "".
func rule(from, path string) string {
	inside := strings.HasPrefix(path, self)
	switch {
	case from == self || from == self+"/driver" || strings.HasPrefix(from, self+"/internal/core") ||
		from == self+"/internal/boottime":
		if !standard(path) && path != "golang.org/x/sys/unix" && !inside {
			return "the root and the port weigh nothing: standard library and golang.org/x/sys only"
		}
		if isStore(path) {
			return "the library knows no store: the caller hands one in"
		}
	case isStore(from):
		// boottime too: a store may time its own calls, and etcdstore how long ago it proved the
		// lease below a heartbeat. Who leads it never decides by a clock.
		if inside && path != self+"/driver" && path != self+"/internal/boottime" && path != storeutil &&
			!(path == self+"/internal/etcdwire" && from == self+"/etcdstore") &&
			!(path == register && from == self+"/k8sstore") && !strings.HasPrefix(path, from) {
			return "a store knows the port, what all stores share, and its own client, and never another store"
		}
	}
	if from == self+"/driver" && inside {
		return "the port stands alone"
	}
	if from == storeutil && inside && path != self+"/driver" {
		return "what all stores share knows the port only"
	}
	if path == storeutil && !isStore(from) && from != self+"/concurrency" && from != self+"/internal/etcdwire" {
		return "what all stores share is for stores, and for how etcd is reached"
	}
	if strings.HasPrefix(from, self+"/internal/core") &&
		(path == "os" || path == "net" || path == "sync" || path == "context" || inside) {
		return "the core is pure: no I/O, no goroutine, nothing of ours"
	}
	if from == self+"/concurrency" && inside && path != self+"/internal/etcdwire" && path != self+"/driver" &&
		path != self+"/internal/core" && path != self+"/internal/boottime" && path != storeutil {
		return "the drop-in is etcd's own package over internal/etcdwire: it knows nothing of the root, and no store"
	}
	if from == self+"/leaderelection" && inside && path != self+"/internal/core" && path != self+"/internal/boottime" {
		return "the drop-in for client-go's package knows the rules of a lease, and neither the root nor a store"
	}
	if isStore(path) && from != self+"/open" && !(path == register && from == self+"/k8sstore") &&
		!strings.HasPrefix(from, self+"/cmd/") && !strings.HasPrefix(from, path) {
		return "only open imports every store"
	}
	if path == self+"/internal/etcdwire" && from != self+"/etcdstore" && from != self+"/concurrency" {
		return "only etcdstore and the drop-in speak with etcd"
	}
	if from == self+"/internal/etcdwire" && inside && path != self+"/driver" && path != storeutil {
		return "how etcd is reached knows no claims"
	}
	if helper(path) && !helper(from) {
		return "test helpers never reach a user's binary"
	}
	if strings.HasPrefix(from, self+"/fence") && inside && path != self && path != self+"/driver" &&
		!strings.HasPrefix(path, self+"/fence") {
		return "a fence knows the words of the root, and no store"
	}
	if strings.HasPrefix(path, self+"/fence") && !strings.HasPrefix(from, self+"/fence") &&
		!strings.HasPrefix(from, self+"/cmd/") {
		return "nobody links a fence that he did not ask for"
	}
	if from == self+"/shards" && inside && path != self && path != self+"/driver" && path != self+"/internal/shardsim" {
		return "shards are elections of the root: they know nothing below it, and no store"
	}
	if path == self+"/internal/shardsim" && from != self+"/shards" && !strings.HasPrefix(from, self+"/test/") {
		return "the way to the decisions of shards is for the simulation"
	}
	if path == self+"/shards" && !strings.HasPrefix(from, self+"/cmd/") && !strings.HasPrefix(from, self+"/examples") &&
		!strings.HasPrefix(from, self+"/test/") {
		return "nobody links shards that he did not ask for"
	}
	if shows(from) && inside && path != self && path != self+"/internal/boottime" {
		return "what shows a session knows the root, and no store"
	}
	if (shows(path) || strings.HasPrefix(path, "github.com/prometheus/") ||
		strings.HasPrefix(path, "go.opentelemetry.io/")) && !shows(from) && !strings.HasPrefix(from, self+"/cmd/") {
		return "nobody links Prometheus or OpenTelemetry that he did not ask for"
	}
	if from == self+"/metrics" && strings.HasPrefix(path, "go.opentelemetry.io/") ||
		from == self+"/trace" && strings.HasPrefix(path, "github.com/prometheus/") {
		return "whoever wants metrics or traces does not link the other"
	}
	if strings.HasPrefix(path, "go.opentelemetry.io/otel/sdk") {
		return "the program chooses its SDK"
	}
	if strings.HasPrefix(path, self+"/test/") && !strings.HasPrefix(from, self+"/test/") {
		return "the module test ships nothing"
	}
	return ""
}

// helper says whether a package is for tests only.
func helper(path string) bool {
	if !strings.HasPrefix(path, self) {
		return false
	}
	switch path[len(self):] {
	case "/driver/drivertest", "/internal/etcdtest", "/internal/etcdsim", "/internal/pgtest", "/internal/redistest",
		"/internal/zktest", "/internal/k8stest", "/internal/servertest", "/internal/programtest":
		return true
	}
	return false
}

// shows says whether a package shows a session to others.
func shows(path string) bool { return path == self+"/metrics" || path == self+"/trace" }

func TestImportRules(t *testing.T) {
	seen, packages := 0, []string{"./..."}
	if os.Getenv("GOWORK") != "off" {
		packages = append(packages, "./leaderelection") // a module of its own
	}
	for path, p := range goList(t, packages...) {
		seen++
		for _, i := range p.Imports {
			if why := rule(path, i); why != "" {
				t.Errorf("%s imports %s: %s", path, i, why)
			}
		}
	}
	if seen < 6 {
		t.Fatalf("only %d packages were looked at", seen)
	}
}

// What a program that uses only the root links: nothing but the standard library and x/sys.
func TestTheRootWeighsNothing(t *testing.T) {
	p := goList(t, ".")[self]
	if len(p.Deps) < 20 {
		t.Fatalf("only %d dependencies were listed", len(p.Deps))
	}
	for _, d := range p.Deps {
		if !standard(d) && !strings.HasPrefix(d, "golang.org/x/sys/") && !strings.HasPrefix(d, self) ||
			d == "testing" || isStore(d) {
			t.Errorf("whoever imports the root links %s", d)
		}
	}
}

func TestTheRuleBites(t *testing.T) {
	for _, bad := range [][2]string{
		{self, "go.etcd.io/etcd/client/v3"},
		{self, self + "/memstore"},
		{self + "/driver", self},
		{self + "/etcdstore", self + "/memstore"},
		{self + "/etcdstore", self + "/internal/core"},
		{storeutil, self + "/internal/boottime"},
		{self, storeutil},
		{self + "/internal/core", "sync"},
		{self + "/open", self + "/driver/drivertest"},
		{self + "/driver/drivertest", self + "/etcdstore"},
		{self + "/etcdstore", self + "/internal/etcdsim"},
		{self + "/fence/etcdfence", self + "/etcdstore"},
		{self, self + "/fence"},
		{self + "/memstore", self + "/test/sim"},
		{self + "/concurrency", self},
		{self + "/concurrency", self + "/memstore"},
		{self + "/concurrency", self + "/etcdstore"},
		{self + "/pgstore", self + "/internal/etcdwire"},
		{self + "/zkstore", register},
		{self + "/internal/etcdwire", self + "/etcdstore"},
		{self, self + "/metrics"},
		{self, self + "/shards"},
		{self + "/shards", self + "/internal/core"},
		{self + "/shards", self + "/etcdstore"},
		{self + "/etcdstore", self + "/trace"},
		{self + "/memstore", "github.com/prometheus/client_golang/prometheus"},
		{self + "/open", "go.opentelemetry.io/otel"},
		{self + "/metrics", self + "/memstore"},
		{self + "/metrics", "go.opentelemetry.io/otel/trace"},
		{self + "/trace", "github.com/prometheus/client_golang/prometheus"},
		{self + "/trace", "go.opentelemetry.io/otel/sdk/trace"},
	} {
		if rule(bad[0], bad[1]) == "" {
			t.Errorf("%s may import %s", bad[0], bad[1])
		}
	}
}

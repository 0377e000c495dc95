package concurrency_test

import (
	"context"
	"go/ast"
	"go/parser"
	"go/token"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/primacy-go/primacy/concurrency"
	"github.com/primacy-go/primacy/internal/etcdtest"
)

// exported returns what a folder's package exports: names, and methods as Type.Method.
func exported(t *testing.T, dir string) map[string]bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	ok(t, "glob", err)
	names := map[string]bool{}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		ok(t, "parse", err)
		for _, d := range f.Decls {
			declared(d, names)
		}
	}
	return names
}

func declared(d ast.Decl, names map[string]bool) {
	switch d := d.(type) {
	case *ast.FuncDecl:
		name := d.Name.Name
		if d.Recv != nil {
			of := d.Recv.List[0].Type
			if star, ok := of.(*ast.StarExpr); ok {
				of = star.X
			}
			if !ast.IsExported(of.(*ast.Ident).Name) {
				return
			}
			name = of.(*ast.Ident).Name + "." + name
		}
		if d.Name.IsExported() {
			names[name] = true
		}
	case *ast.GenDecl:
		for _, s := range d.Specs {
			switch s := s.(type) {
			case *ast.TypeSpec:
				names[s.Name.Name] = s.Name.IsExported()
			case *ast.ValueSpec:
				for _, n := range s.Names {
					names[n.Name] = n.IsExported()
				}
			}
		}
	}
}

// TestTheWholeAPI compares what both packages export. Signatures are compared by etcd's own
// tests, which compile against ours.
func TestTheWholeAPI(t *testing.T) {
	out, err := exec.Command("go", "list", "-f", "{{.Dir}}", "go.etcd.io/etcd/client/v3/concurrency").Output()
	ok(t, "go list", err)
	theirs, have := exported(t, strings.TrimSpace(string(out))), exported(t, ".")
	have["Election.Observe"] = true // is the original's, embedded
	n := 0
	for name, public := range theirs {
		if public {
			n++
			if !have[name] {
				t.Errorf("%s is missing", name)
			}
		}
	}
	if n < 40 {
		t.Errorf("only %d names in %s", n, filepath.Clean(string(out)))
	}
}

// TestRightsOnThePrefixOnly: a user who may use nothing but the prefix of his election, and whose
// token expires all the time.
func TestRightsOnThePrefixOnly(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{Args: []string{"--auth-token-ttl", "2", "--bcrypt-cost", "4"}})
	c := dial(t, srv.Endpoint())
	step := func(_ any, err error) {
		t.Helper()
		ok(t, "set up", err)
	}
	step(c.RoleAdd(soon(t), "r"))
	step(c.RoleGrantPermission(soon(t), "r", "mine/", v3.GetPrefixRangeEnd("mine/"),
		v3.PermissionType(v3.PermReadWrite)))
	step(c.UserAdd(soon(t), "runner", "secret"))
	step(c.UserGrantRole(soon(t), "runner", "r"))
	step(c.UserAdd(soon(t), "root", "secret"))
	step(c.UserGrantRole(soon(t), "root", "root"))
	step(c.AuthEnable(soon(t)))
	user, err := v3.New(v3.Config{Endpoints: []string{srv.Endpoint()}, Username: "runner", Password: "secret",
		Logger: zap.NewNop()})
	ok(t, "New", err)
	defer user.Close()

	s, other := begin(t, user, concurrency.WithTTL(10)), begin(t, user, concurrency.WithTTL(10))
	idle := begin(t, user, concurrency.WithTTL(10)) // has no key to prove its renewals with
	e, w := concurrency.NewElection(s, "mine"), concurrency.NewElection(other, "mine")
	ok(t, "Campaign", e.Campaign(soon(t), "one"))
	won := async(func() error { return w.Campaign(soon(t), "two") })
	for _, s := range []*concurrency.Session{s, other, idle} {
		concurrency.WaitRenewals(t, s, 2) // each with a token that has expired since the last
	}
	ok(t, "Proclaim", e.Proclaim(soon(t), "three"))
	ok(t, "Resign", e.Resign(soon(t)))
	if err, came := in(time.Minute, won); !came || err != nil {
		t.Errorf("the next: %v, %v", err, came)
	}
	ok(t, "Lock", concurrency.NewMutex(idle, "mine/lock").Lock(soon(t)))
	if err := concurrency.NewMutex(idle, "theirs").Lock(soon(t)); err == nil || !strings.Contains(err.Error(),
		"permission denied") {
		t.Errorf("Lock without rights = %v", err)
	}
	ok(t, "Check", idle.Check())
}

// TestALateProclaimBringsNoOldValueBack holds one back on its way until a later one was carried
// out.
func TestALateProclaimBringsNoOldValueBack(t *testing.T) {
	t.Parallel()
	srv := concurrency.SharedServer(t)
	c := dial(t, srv.Endpoint())
	both(t, func(t *testing.T, k kit) string {
		pfx := "proclaim-" + k.name
		proxy := etcdtest.NewProxy(t, srv.Addr())
		e := k.election(k.open(t, dial(t, proxy.Addr(), srv.Addr())), pfx)
		ok(t, "Campaign", e.Campaign(soon(t), "first"))
		holdBack(t, proxy, func(ctx context.Context, mark string) { _ = e.Proclaim(ctx, mark) })
		eventually(t, "a Proclaim elsewhere", time.Minute, func() bool {
			return e.Proclaim(within(t,
				3*time.Second), "latest") == nil
		})
		proxy.Heal()
		if k.shows(func() bool {
			resp, err := c.Get(soon(t), e.Key())
			ok(t, "get", err)
			return len(resp.Kvs) != 1 || string(resp.Kvs[0].Value) != "latest"
		}) {
			return "the old value is back"
		}
		return ""
	})
}

//go:build linux

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// snippet is what a block of Go in a document needs around it: what it is given, and the names that
// it declares.
type snippet struct{ given, declares string }

// What the blocks of a document need, in their order.
var snippets = map[string][]snippet{
	"README.md": {
		{given: "ctx context.Context, work func(context.Context, primacy.Token) error"},
	},
	"docs/locks.md": {
		{given: "ctx context.Context, session *primacy.Session, bill func(context.Context, primacy.Token) error",
			declares: "err, term, terms"},
	},
	"docs/new-store.md": {{}, {}}, // whole files of one package
	"docs/fencing.md": {
		{given: "ctx context.Context, client *clientv3.Client, store *etcdstore.Store, term *primacy.Term, compares []clientv3.Cmp, ops []clientv3.Op", declares: "resp, err"},
		{given: "ctx context.Context, db *sql.DB, pgxTx pgx.Tx, term *primacy.Term", declares: "err"},
		{given: "ctx context.Context, client *redis.Client, term *primacy.Term, script string", declares: "v, err"},
		{given: "ctx context.Context, term *primacy.Term, url string, accounts, orders http.Handler, server *http.Server", declares: "err"},
		{given: "ctx context.Context, path string, data []byte, term *primacy.Term", declares: "data, err"},
	},
}

// importsOf are the packages that blocks name, by that name.
var importsOf = map[string]string{
	"bytes": "bytes", "fmt": "fmt", "io": "io", "url": "net/url", "os": "os", "strings": "strings",
	"testing": "testing", "driver": "github.com/primacy-go/primacy/driver",
	"drivertest":    "github.com/primacy-go/primacy/driver/drivertest",
	"registerstore": "github.com/primacy-go/primacy/registerstore",
	"context":       "context", "sql": "database/sql", "http": "net/http", "time": "time",
	"primacy": "github.com/primacy-go/primacy", "open": "github.com/primacy-go/primacy/open",
	"etcdstore": "github.com/primacy-go/primacy/etcdstore", "fence": "github.com/primacy-go/primacy/fence",
	"etcdfence":  "github.com/primacy-go/primacy/fence/etcdfence",
	"sqlfence":   "github.com/primacy-go/primacy/fence/sqlfence",
	"redisfence": "github.com/primacy-go/primacy/fence/redisfence",
	"httpfence":  "github.com/primacy-go/primacy/fence/httpfence",
	"filefence":  "github.com/primacy-go/primacy/fence/filefence", "clientv3": "go.etcd.io/etcd/client/v3",
	"pgx": "github.com/jackc/pgx/v5", "redis": "github.com/redis/go-redis/v9",
}

// goBlocks returns the blocks of Go in a document.
func goBlocks(t *testing.T, doc string) (blocks []string) {
	b, err := os.ReadFile(filepath.Join("../..", doc))
	if err != nil {
		t.Fatal(err)
	}
	for i, block := range strings.Split(string(b), "```") {
		if rest, ok := strings.CutPrefix(block, "go\n"); ok && i%2 == 1 {
			blocks = append(blocks, rest)
		}
	}
	return blocks
}

// source makes a program's file of a block. What a reader fills in (…) is filled with nothing.
func (s snippet) source(pkg, name, block string) string {
	block = strings.NewReplacer("{ … }", "{ return nil }", "\n…\n", "\n").Replace(block)
	body := fmt.Sprintf("func %s(%s) (done error) {\n{\n%s\n", name, s.given, block)
	for name := range strings.SplitSeq(s.declares, ", ") {
		if name != "" {
			body += "_ = " + name + "\n"
		}
	}
	body += "}\nreturn nil\n}\n"
	return "package " + pkg + "\n" + imports(body) + body
}

// imports returns the imports that code needs.
func imports(body string) (out string) {
	code := regexp.MustCompile(`//.*`).ReplaceAllString(body, "")
	for name, path := range importsOf {
		if regexp.MustCompile(`\b` + name + `\.`).MatchString(code) {
			out += fmt.Sprintf("import %s %q\n", name, path)
		}
	}
	return out
}

// TestTheGoOfTheDocumentsCompiles, as it stands there; the lines of the README also run.
func TestTheGoOfTheDocumentsCompiles(t *testing.T) {
	w := newWorld(t)
	overlay := map[string]string{}
	put := func(pkg, file, text string) {
		real := filepath.Join(w.dir, strings.ReplaceAll(pkg, "/", "-")+"-"+file)
		if err := os.WriteFile(real, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		at, err := filepath.Abs(filepath.Join("..", pkg, file))
		if err != nil {
			t.Fatal(err)
		}
		overlay[at] = real
	}
	for doc, needs := range snippets {
		blocks := goBlocks(t, doc)
		if len(blocks) != len(needs) {
			t.Fatalf("%s has %d blocks of Go, and %d are known here", doc, len(blocks), len(needs))
		}
		for i, block := range blocks {
			if strings.HasPrefix(block, "package ") {
				name := fmt.Sprintf("block%d.go", i)
				if strings.Contains(block, "*testing.T") {
					name = fmt.Sprintf("block%d_test.go", i)
				}
				head, body, _ := strings.Cut(block, "\n")
				put("indocs/whole", name, head+"\n"+imports(body)+body)
				continue
			}
			if strings.HasPrefix(block, "import ") {
				continue // upstreamtest changes exactly this line in etcd's own tests
			}
			put("indocs", fmt.Sprintf("%s%d.go", strings.NewReplacer("/", "_", ".", "_").Replace(doc), i), needs[i].source("indocs", fmt.Sprintf("block%d%s", i, strings.NewReplacer("/", "", ".", "").Replace(doc)), block))
		}
	}
	fifteen := strings.Replace(goBlocks(t, "README.md")[0], "etcd://127.0.0.1:2379", w.store, 1)
	put("fifteen", "main.go", snippets["README.md"][0].source("main", "lead", fifteen)+`
func main() {
	if err := lead(context.Background(), func(_ context.Context,
		token primacy.Token) error { println("works under", token); return nil }); err != nil {
		panic(err)
	}
}
`)
	b, err := json.Marshal(map[string]any{"Replace": overlay})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(w.dir, "overlay.json")
	if err := os.WriteFile(file, b, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"build", "-overlay", file, "./indocs"}, {"test", "-c", "-vet=off", "-o", os.DevNull, "-overlay", file, "./indocs/whole"}, {"run", "-overlay", file, "./fifteen"}} {
		cmd := exec.Command("go", args...)
		cmd.Dir = ".."
		out, err := cmd.CombinedOutput()
		if err != nil || args[0] == "run" && !strings.Contains(string(out), "works under") {
			t.Errorf("go %v: %v: %s", args, err, out)
		}
	}
}

package page

import (
	"crypto/sha256"
	"embed"
	"fmt"
	"html/template"
	"net/http"
	"path"
	"strings"
	"sync"
	"time"

	"github.com/primacy-go/primacy/cmd/internal/shown"
)

//go:embed assets templates
var embedded embed.FS

// assetPath is what the paths of the assets begin with, below Path. The next part is a hash of what
// is in them: a browser keeps them for ever, and asks anew after an update.
const assetPath = "assets/"

// assets are the addresses of what a page loads.
type assets struct{ CSS, JS, Icon string }

var (
	hash   = hashOf("page.css", "page.js", "icon.svg")
	hashed = assets{Path + assetPath + hash + "/page.css", Path + assetPath + hash + "/page.js",
		Path + assetPath + hash + "/icon.svg"}
	kinds = map[string]string{".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8",
		".svg": "image/svg+xml"}
)

func asset(name string) []byte {
	text, err := embedded.ReadFile("assets/" + name)
	if err != nil {
		panic(err)
	}
	return text
}

func hashOf(names ...string) string {
	h := sha256.New()
	for _, n := range names {
		_, _ = h.Write(asset(n))
	}
	return fmt.Sprintf("%x", h.Sum(nil)[:8])
}

func serveAsset(w http.ResponseWriter, r *http.Request, name string) {
	of, file, _ := strings.Cut(name, "/")
	text, err := embedded.ReadFile("assets/" + file)
	if err != nil || of != hash || r.Method != http.MethodGet && r.Method != http.MethodHead {
		http.Error(w, "there is nothing here: reload the page", http.StatusNotFound)
		return
	}
	w.Header().Set("Content-Type", kinds[path.Ext(file)])
	w.Header().Set("Cache-Control", "public, max-age=31536000, immutable")
	if r.Method == http.MethodGet {
		_, _ = w.Write(text)
	}
}

// pages are the templates of each view, with what all of them share. Nothing in them is trusted:
// html/template escapes all that others wrote, by the place where it stands. They are parsed when
// the first page is made: every run of the program would pay for it, and few serve pages.
var pages = sync.OnceValue(parsed)

func parsed() map[string]*template.Template {
	shared := template.Must(template.New("").Funcs(template.FuncMap{
		"clock":  func(t time.Time) string { return shown.Clock(t, time.UTC) },
		"stamp":  func(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z") },
		"millis": func(t time.Time) int64 { return t.UnixMilli() },
		"age":    func(t time.Time) string { return ageOf(time.Since(t)) },
		"known":  func(t time.Time) bool { return !t.IsZero() },
		"seq":    func(n int) []struct{} { return make([]struct{}, max(0, n)) },
		"show":   shown.Printable,
		"pieces": func(name string) []string { return strings.SplitAfter(shown.Printable(name), "/") },
		"plural": plural,
	}).ParseFS(embedded, "templates/layout.html"))
	all := map[string]*template.Template{}
	files, err := embedded.ReadDir("templates")
	if err != nil {
		panic(err)
	}
	for _, f := range files {
		if name, ok := strings.CutSuffix(f.Name(), ".html"); ok && name != "layout" {
			all[name] = template.Must(template.Must(shared.Clone()).ParseFS(embedded, "templates/"+f.Name()))
		}
	}
	return all
}

func plural(n int, one, many string) string {
	if n == 1 {
		return fmt.Sprintf("%d %s", n, one)
	}
	return fmt.Sprintf("%d %s", n, many)
}

// ageOf is how long ago something was, as the script says it too.
func ageOf(d time.Duration) string {
	s := int(max(0, d).Seconds())
	switch {
	case s < 60:
		return fmt.Sprintf("%d s", s)
	case s < 3600:
		return fmt.Sprintf("%d min %02d s", s/60, s%60)
	case s < 48*3600:
		return fmt.Sprintf("%d h %02d min", s/3600, s/60%60)
	}
	return fmt.Sprintf("%d d %02d h", s/86400, s/3600%24)
}

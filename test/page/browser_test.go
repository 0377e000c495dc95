//go:build linux

package page

import (
	"context"
	"crypto/sha512"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto"
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/primacy-go/primacy/internal/programtest"
	"github.com/primacy-go/primacy/internal/servertest"
)

// limit bounds what happens at once; the machine may be busy.
const limit = time.Minute

// Chromium is the one browser of all tests: it takes a second to start.
var chromium = sync.OnceValues(func() (context.Context, error) {
	opts := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath("chromium"), chromedp.NoSandbox,
		chromedp.DisableGPU, chromedp.WSURLReadTimeout(limit))
	alloc, cancel := chromedp.NewExecAllocator(context.Background(), opts...)
	ctx, stop := chromedp.NewContext(alloc)
	endChromium = func() { stop(); cancel() }
	return ctx, chromedp.Do(ctx)
})

var endChromium = func() {}

func TestMain(m *testing.M) {
	code := m.Run()
	endChromium()
	programtest.Remove()
	os.Exit(code)
}

// how a view is looked at.
type look struct {
	width int64
	dark  bool
	plain bool // without script
}

// tab is a page of the browser, in a profile of its own. Whatever goes wrong in it fails the test.
type tab struct {
	testing.TB
	ctx context.Context

	mu     sync.Mutex
	faults []string
}

func newTab(t testing.TB, l look) *tab {
	t.Helper()
	programtest.Needs(t, "chromium")
	browser, err := chromium()
	if err != nil {
		t.Fatalf("chromium: %v", err)
	}
	b := &tab{TB: t}
	ctx, cancel := chromedp.NewContext(browser, chromedp.WithNewBrowserContext(), chromedp.WithListener(b.hear))
	t.Cleanup(cancel)
	b.ctx = ctx
	if err := chromedp.Do(ctx); err != nil { // the tab lives as long as this context
		t.Fatalf("a tab: %v", err)
	}
	scheme := "light"
	if l.dark {
		scheme = "dark"
	}
	height := l.width * 9 / 16
	if l.width < 600 {
		height = l.width * 2
	}
	call(b, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{Width: l.width, Height: height,
		DeviceScaleFactor: 1, Mobile: l.width < 600})
	call(b, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{
		{Name: "prefers-color-scheme", Value: scheme}, {Name: "prefers-reduced-motion", Value: "reduce"}}})
	call(b, emulation.SetTimezoneOverride, emulation.SetTimezoneOverrideParams{TimezoneID: "Europe/Vienna"})
	call(b, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: l.plain})
	call(b, page.AddScriptToEvaluateOnNewDocument, page.AddScriptToEvaluateOnNewDocumentParams{
		Source: `addEventListener('securitypolicyviolation',
			e => console.error('policy: ' + e.violatedDirective + ' ' + e.blockedURI));`})
	call(b, log.Enable, cdp.Empty{})
	call(b, runtime.Enable, cdp.Empty{})
	t.Cleanup(b.wasSound)
	return b
}

// call sends a command of Chromium's protocol.
func call[P, R any](b *tab, c cdp.Command[P, R], params P) {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, limit)
	defer cancel()
	if _, err := chromedp.Call(ctx, c, params); err != nil {
		b.Fatalf("%s: %v", c.Method, err)
	}
}

// hear collects what a browser complains of.
func (b *tab) hear(ev any) {
	fault := ""
	switch ev := ev.(type) {
	case *runtime.EventExceptionThrown:
		fault = fmt.Sprint(ev.ExceptionDetails.Text, " ", ev.ExceptionDetails.Exception)
	case *runtime.EventConsoleAPICalled:
		if ev.Type == runtime.ConsoleAPICalledTypeError || ev.Type == runtime.ConsoleAPICalledTypeWarning {
			for _, a := range ev.Args {
				fault += fmt.Sprint(a.Value) + " "
			}
		}
	case *log.EventEntryAdded:
		if ev.Entry.Level == log.EntryLevelError || ev.Entry.Level == log.EntryLevelWarning {
			fault = ev.Entry.Text + " " + ev.Entry.URL
		}
	}
	if fault == "" {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.faults = append(b.faults, fault)
}

func (b *tab) wasSound() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, f := range b.faults {
		b.Errorf("the browser complains: %s", f)
	}
}

// forgive forgets complaints that a test has provoked.
func (b *tab) forgive() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.faults = nil
}

func (b *tab) run(actions ...chromedp.Action[chromedp.Void]) {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, limit)
	defer cancel()
	if err := chromedp.Do(ctx, actions...); err != nil {
		b.Fatalf("the browser: %v", err)
	}
}

// goes opens an address, and returns when the whole page is there.
func (b *tab) goes(url string) *tab {
	b.Helper()
	b.run(chromedp.Navigate(url))
	b.when("the page is whole", `document.readyState === 'complete' && Boolean(document.querySelector('main'))`)
	return b
}

// get returns what an action does.
func get[T any](b *tab, a chromedp.Action[T]) T {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, limit)
	defer cancel()
	v, err := chromedp.Run(ctx, a)
	if err != nil {
		b.Fatalf("the browser: %v", err)
	}
	return v
}

// js returns what a script returns, and waits where that is a promise.
func js[T any](b *tab, script string) T {
	b.Helper()
	return get(b, chromedp.Evaluate[T](script, chromedp.EvalAwaitPromise))
}

// ask returns what a script returns that changes nothing. A script that meets the change from one
// page to the next gets an error instead of an answer: the page that comes is asked.
func ask[T any](b *tab, script string) T {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, limit)
	defer cancel()
	for {
		got, err := chromedp.Run(ctx, chromedp.Evaluate[T](script))
		if err == nil {
			return got
		}
		if !leaves(err) {
			b.Fatalf("the browser: %v", err)
		}
	}
}

// when waits for a script to say true.
func (b *tab) when(what, script string) {
	b.Helper()
	for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if ask[bool](b, script) {
			return
		}
	}
	b.Fatalf("not in %v: %s; the page shows\n%s", limit, what, b.text("main"))
}

func (b *tab) text(selector string) string {
	b.Helper()
	return ask[string](b, fmt.Sprintf(`[...document.querySelectorAll(%q)].map(e => e.innerText).join(' | ')`, selector))
}

// until waits for a text in an element, and returns when it was seen.
func (b *tab) until(selector, text string) time.Time {
	b.Helper()
	got := ""
	for end := time.Now().Add(limit); time.Now().Before(end); {
		began := time.Now()
		if got = b.text(selector); strings.Contains(got, text) {
			return time.Now()
		}
		// What a browser is asked comes before what it is sent: it must not be asked all the time.
		time.Sleep(max(10*time.Millisecond, 2*time.Since(began)))
	}
	b.Fatalf("%s has no %q, but %q", selector, text, got)
	return time.Time{}
}

// leaves says whether a script had no answer because the browser was leaving the page. The protocol
// has one code for all that the browser refuses, so that the words tell.
func leaves(err error) bool {
	refused, ok := errors.AsType[*cdproto.Error](err)
	return ok && (strings.Contains(refused.Message, "navigated or closed") ||
		strings.Contains(refused.Message, "context was destroyed") ||
		strings.Contains(refused.Message, "Cannot find context"))
}

// shows waits for texts in an element: what a server that has just started did not know yet is on
// the page by the next update.
func (b *tab) shows(selector string, texts ...string) {
	b.Helper()
	for _, want := range texts {
		b.until(selector, want)
	}
}

// click waits for what has that text, and presses it. The new page must not begin before the answer
// of the script is sent, so that the script only plans the click.
func (b *tab) click(selector, text string) {
	b.Helper()
	b.when(fmt.Sprintf("a %s has %q", selector, text), fmt.Sprintf(`(() => {
		const e = [...document.querySelectorAll(%q)].find(e => e.innerText.includes(%q));
		if (e) setTimeout(() => e.click()); return Boolean(e) })()`, selector, text))
}

// fits says whether nothing stands beyond the edge: a page that must be pushed sideways is not read
// on a phone.
func (b *tab) fits(what string) {
	b.Helper()
	got := js[[]int](b, `[document.documentElement.scrollWidth, innerWidth]`)
	if got[0] > got[1] {
		wide := js[string](b, `[...document.querySelectorAll('main *')].filter(e =>
			e.getBoundingClientRect().right > innerWidth + 1 &&
			!e.closest('.scroll')).slice(0, 3).map(e => e.outerHTML.slice(0, 120)).join('\n')`)
		b.Errorf("%s is %d wide, on a screen of %d:\n%s", what, got[0], got[1], wide)
	}
}

// reads says whether words stand one beside the other: a column that is squeezed has a word, or a
// part of one, on each of its lines, and words on a drawing may cover each other.
func (b *tab) reads(what string) {
	b.Helper()
	squeezed := js[[]string](b, `[...document.querySelectorAll('.list td, .list th')].filter(e => {
		const s = getComputedStyle(e), r = document.createRange();
		r.selectNodeContents(e);
		const box = r.getBoundingClientRect();
		return box.width < 6 * parseFloat(s.fontSize) && box.height > 2.5 * parseFloat(s.lineHeight) &&
			!e.querySelector('.chip, .kind, details') }).slice(0, 3).map(e => e.innerText)`)
	for _, text := range squeezed {
		b.Errorf("%s has a column that is too narrow for %q", what, text)
	}
	over := js[[]string](b, `[...document.querySelectorAll('.timeline text')].map(e => [e.getBoundingClientRect(),
		e.textContent]).filter(([box]) => box.width > 0).flatMap(([box, text], i, all) =>
		i > 0 && all[i-1][0].right > box.left ? [all[i-1][1] + ' and ' + text] : []).slice(0, 3)`)
	for _, words := range over {
		b.Errorf("%s has words that cover each other: %s", what, words)
	}
}

// shoot keeps a picture, where that is asked for.
func (b *tab) shoot(name string) {
	b.Helper()
	if dir := os.Getenv("PAGE_SHOTS"); dir != "" {
		b.picture(filepath.Join(dir, name+".png"))
	}
}

func (b *tab) picture(path string) {
	b.Helper()
	png := get(b, chromedp.CaptureScreenshot())
	if err := os.WriteFile(path, png, 0o644); err != nil {
		b.Fatal(err)
	}
}

// axe-core is the checker of accessibility, from npm. Its tarball is the one with this SHA-512.
const (
	axeVersion = "4.14.1"
	axeHash    = "1477dafa598d8d065f273d6af302aa203c02e83131707b7fa648cd41bd3d6b73" +
		"4f8c22a0dab86ee6a6f64b8afbe804b214d36db85a2826965edfb3a0b9d546b5"
)

func isAxe(tarball string) error {
	text, err := os.ReadFile(tarball)
	if err != nil {
		return err
	}
	if got := fmt.Sprintf("%x", sha512.Sum512(text)); got != axeHash {
		return fmt.Errorf("axe-core %s has the hash %s, want %s", axeVersion, got, axeHash)
	}
	return nil
}

// axe returns its script.
var axe = sync.OnceValues(func() (string, error) {
	kept, err := servertest.CacheOf("axe-core-" + axeVersion + ".js")
	if err != nil {
		return "", err
	}
	path, err := kept.Build(func(out string) error {
		dir, err := os.MkdirTemp("", "axe-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(dir)
		pack := exec.Command("npm", "pack", "--silent", "axe-core@"+axeVersion)
		pack.Dir = dir
		if text, err := pack.CombinedOutput(); err != nil {
			return fmt.Errorf("npm pack: %w\n%s", err, text)
		}
		tarball := filepath.Join(dir, "axe-core-"+axeVersion+".tgz")
		if err := isAxe(tarball); err != nil {
			return err
		}
		unpack := exec.Command("tar", "-xzf", tarball, "-C", dir, "package/axe.min.js")
		if text, err := unpack.CombinedOutput(); err != nil {
			return fmt.Errorf("tar: %w\n%s", err, text)
		}
		script, err := os.ReadFile(filepath.Join(dir, "package", "axe.min.js"))
		if err != nil {
			return err
		}
		return os.WriteFile(out, script, 0o644)
	})
	if err != nil {
		return "", err
	}
	script, err := os.ReadFile(path)
	return string(script), err
})

// accessible has axe look at the view: names, roles, contrast, order of headings.
func (b *tab) accessible(what string) {
	b.Helper()
	script, err := axe()
	if err != nil {
		b.Fatalf("axe-core: %v", err)
	}
	js[bool](b, script+"\n;true")
	var found []struct {
		ID, Help string
		Nodes    []struct{ HTML, FailureSummary string }
	}
	text := js[string](b, `axe.run(document, {resultTypes: ['violations']}).then(r => JSON.stringify(r.violations))`)
	if err := json.Unmarshal([]byte(text), &found); err != nil {
		b.Fatal(err)
	}
	for _, v := range found {
		for _, n := range v.Nodes[:min(3, len(v.Nodes))] {
			b.Errorf("%s: %s (%s): %s\n%s", what, v.ID, v.Help, n.HTML, n.FailureSummary)
		}
	}
}

//go:build linux

package page

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
)

// views are all views of the night, by the name of their pictures.
func (w *world) views() [][2]string {
	at := quarterPast3().Format(time.RFC3339)
	token := w.leader("billing").Token.String()
	return [][2]string{
		{"overview", w.at("")}, {"election", w.at("election", "name", "billing")},
		{"answer", w.at("election", "name", "billing", "at", at)}, {"deserted", w.at("election", "name",
			"reports/monthly")},
		{"members", w.at("members")}, {"member", w.at("member", "id", "web-1")}, {"cron", w.at("cron")},
		{"job", w.at("job", "name", "report-hourly")}, {"store", w.at("store")},
		{"resign", w.at("act", "verb", "resign", "name", "billing", "token", token)},
		{"transfer", w.at("act", "verb", "transfer", "name", "billing", "token", token)},
		{"drain", w.at("act", "verb", "drain", "member", "web-1")}, {"shards", w.at("shards")},
		{"group", w.at("group", "name", "tenants")}, {"shard", w.at("group", "name", "tenants", "shard", "7")},
		{"pause", w.at("act", "verb", "pause", "name", "billing")}, {"resume", w.at("act", "verb", "resume", "name",
			"cron/")}, {"problem", w.at("nothing")},
	}
}

// Each view fits a phone, a desk and a wall, and can be read by everybody, by day and by night.
func TestEachView(t *testing.T) {
	w := night(t, "--ui-actions")
	views := w.views()
	looks := []look{{width: 1280}, {width: 360, dark: true}, {width: 3840}, {width: 1280, dark: true}, {width: 360}}
	if testing.Short() {
		looks = looks[:3]
	}
	for _, l := range looks {
		b := newTab(t, l)
		for _, v := range views {
			if testing.Short() && l.width == 3840 && v[0] != "overview" && v[0] != "answer" {
				continue
			}
			what := fmt.Sprintf("%s-%d", v[0], l.width)
			if l.dark {
				what += "-dark"
			}
			b.goes(v[1])
			if v[0] == "problem" {
				b.forgive() // of the status
			}
			b.fits(what)
			b.reads(what)
			if html := js[string](b, `document.documentElement.outerHTML`); strings.Contains(html, "ZgotmplZ") {
				t.Errorf("%s has what a template refused", what)
			}
			if l.width < 3840 {
				b.accessible(what)
			}
			b.shoot(what)
		}
	}
}

// What an operator asks in the first minute is answered by what stands on the page.
func TestFiveQuestions(t *testing.T) {
	w := night(t)
	b := newTab(t, look{width: 1280})
	b.goes(w.at(""))
	b.when("what is in trouble is the first row",
		`document.querySelector('#rows tr th')?.innerText === 'reports/monthly'`)
	b.until("#trouble", "2 in trouble")
	b.click("a", "billing")
	b.until("h1", "billing")
	b.until("#head .big", "web-1")
	b.shows("#head", "UTC")
	b.until("#live", "live")
	typed := "03:12" // the last one: within the hour after it that is not the one of the night
	if time.Since(quarterPast3()) > 24*time.Hour {
		typed = quarterPast3().Format("2006-01-02 15:04")
	}
	b.run(chromedp.SendKeys(`input[name=at]`, typed+"\r"))
	b.until("#answer", "web-2 led")
	b.shows("#answer", "its process was frozen for 14s", "web-3 was the next to lead", "03:12:00 UTC")
	b.shows(".here", "web-2", "lease expired")
	if here := js[string](b, `location.search`); !strings.Contains(here, "at="+quarterPast3().Format("2006-01-02")) {
		t.Errorf("the address means another instant tomorrow: %s", here)
	}
	b.shows("#answer time .local", "4:12:00", "GMT+1") // or +2: the reader's zone
	b.click("a", "Primacy")
	b.until("#pauses", "everything below cron/ is paused by ops@desk")
	b.shows("#pauses", "until", "UTC", "the database moves to other disks", "primacy resume cron/")
}

// Each request is confirmed, made, and told; the history says who asked.
func TestEachAction(t *testing.T) {
	w := newWorld(t, "--ui-actions")
	one, two := w.session("web-1"), w.session("web-2")
	w.stand(one, "", "billing", "reports")
	w.stand(two, "", "billing", "reports")
	b := newTab(t, look{width: 1280})
	token := w.leader("billing").Token
	confirm := func(word, title string) {
		t.Helper()
		b.click("a.button", word)
		b.until("h1", title)
		if got := w.leader("billing").Token; got != token {
			t.Fatalf("to open the form has ended the term under token %d", token)
		}
		b.run(chromedp.SetValue("#by", "ops@desk"), chromedp.SetValue("#reason", "a test"))
		b.click("button.danger", title[:4])
	}
	b.goes(w.at("election", "name", "billing"))
	confirm("Resign", "Ask web-1 to resign billing")
	b.until("#requests", "web-2 leads now")
	b.until("#head", "web-2")
	b.until("#terms", "ops@desk")
	token = w.leader("billing").Token
	confirm("Transfer", "Hand billing over")
	b.until("#requests", "web-1 leads now")
	token = w.leader("billing").Token
	confirm("Drain web-1", "Move all that web-1 leads")
	b.until("#requests", "All 2 have moved")
	for _, name := range []string{"billing", "reports"} {
		if l := w.leader(name); l.ID != "web-2" {
			t.Errorf("%s leads %s", l.ID, name)
		}
	}
	b.goes(w.at("election", "name", "billing"))
	b.click("#head a.button", "Pause")
	b.until("h1", "Pause billing?")
	if all := w.paused(); len(all) != 0 {
		t.Fatal("to open the form has paused it")
	}
	b.run(chromedp.SetValue("#by", "ops@desk"), chromedp.SetValue("#reason", "a drill"),
		chromedp.SetValue("#for", "30m"), chromedp.Click("input[type=checkbox]"))
	b.click("button.danger", "Pause")
	b.until("#pauses", "billing is paused by ops@desk")
	b.shows("#pauses", "nobody new is elected", "a drill")
	if all := w.paused(); len(all) != 1 || all[0].Scope != "billing" || !all[0].NoElections ||
		time.Until(all[0].Until) > 30*time.Minute {
		t.Errorf("paused: %+v", all)
	}
	b.click("#pauses a.button", "Resume")
	b.until("h1", "Resume billing?")
	b.shows("main", "web-2 leads on")
	b.run(chromedp.SetValue("#by", "eve@desk"))
	b.click("button.danger", "Resume")
	b.until("h1", "billing")
	b.when("nothing is paused", `document.querySelector('#pauses')?.innerText === ''`)
	if all := w.paused(); len(all) != 0 {
		t.Errorf("still paused: %+v", all)
	}
}

// A thousand shards on fifty members: each screen has them, and says first what nobody owns.
func TestAThousandShards(t *testing.T) {
	if testing.Short() {
		t.Skip("long: make verify VERIFY=race-program")
	}
	w := newWorld(t)
	w.fleet("fleet", 1024, 50)
	for _, l := range []look{{width: 1280}, {width: 360, dark: true}, {width: 3840}} {
		b := newTab(t, l)
		b.goes(w.at(""))
		b.shows("#rows", "fleet", "1024 shards, 50 members", "3 without an owner")
		if rows := js[int](b, `document.querySelectorAll('#rows tr').length`); rows != 1 {
			t.Errorf("the overview has %d rows", rows)
		}
		b.click("#rows a", "fleet")
		b.until("h1", "fleet")
		b.shows("#free", "3 shards have no owner")
		b.shows("#ghead", "1021 of 1024")
		if rows := js[int](b, `document.querySelectorAll('#rows tr').length`); rows != 50 {
			t.Errorf("%d members are shown", rows)
		}
		what := fmt.Sprintf("fleet-%d", l.width)
		b.fits(what)
		if l.width < 3840 {
			b.accessible(what)
		}
		b.shoot(what)
	}
}

// A page that only shows offers commands, and a click on one copies it.
func TestAPageThatOnlyShows(t *testing.T) {
	w := newWorld(t)
	w.stand(w.session("web-1"), "", "billing")
	b := newTab(t, look{width: 1280})
	b.goes(w.at("election", "name", "billing"))
	if n := js[int](b, `document.querySelectorAll('a.button, form[method=post]').length`); n != 0 {
		t.Errorf("%d requests are offered", n)
	}
	b.shows("#head .command", "primacy resign billing", "primacy drain web-1")
	b.shows("footer", "This page only shows", "Europe/Vienna")
}

// A leader is killed while the page is open: whoever looks sees it, without a hand on the keyboard.
// In fake time, where the machine's load does not count, TestATabIsToldWhatChanges bounds this.
func TestALeaderIsKilledWhileThePageIsOpen(t *testing.T) {
	w := newWorld(t)
	leads, _ := w.start("run", "--id", "web-1", "--ttl", "3s", "billing", "--", "sleep", "1000")
	s := w.session("web-2")
	w.eventually("web-1 leads", func() bool {
		l, err := s.Election("billing").Leader(context.Background())
		return err == nil && l.ID == "web-1"
	})
	w.stand(s, "", "billing")
	list, one := newTab(t, look{width: 1280}), newTab(t, look{width: 1280})
	list.goes(w.at(""))
	one.goes(w.at("election", "name", "billing"))
	list.until("#rows .who", "web-1")
	one.until("#head .big", "web-1")
	list.until("#live", "live")
	one.until("#live", "live")
	js[bool](list, `window.seen = 0, new MutationObserver(() => {
		const who = document.querySelector('#rows .who').innerText;
		if (!window.seen && who.includes('web-2')) window.seen = Date.now() })
		.observe(document.querySelector('#rows'), {childList: true, subtree: true, characterData: true}), true`)
	known := make(chan time.Time, 1)
	go func() {
		for st, err := range s.Election("billing").Observe(w.Context()) {
			if err == nil && st.Leader != nil && st.Leader.ID == "web-2" {
				known <- time.Now()
				return
			}
		}
	}()
	_ = leads.Process.Kill()
	list.until("#rows .who", "web-2")
	one.until("#head .big", "web-2")
	seen := time.UnixMilli(int64(js[float64](list, `window.seen`)))
	took := seen.Sub(<-known)
	t.Logf("shown %v after the store knew", took.Round(time.Millisecond))
	if most := measured(time.Second, 20*time.Second); took > most {
		t.Errorf("it was shown after %v, want %v", took, most)
	}
	one.until("#terms", "web-1") // its term is history
}

// A server that has stopped, or a cable that is cut, closes no connection: a page that goes on
// saying that it is live shows the past as the present.
func TestAFrozenServerIsNotLive(t *testing.T) {
	if testing.Short() {
		t.Skip("long: make verify VERIFY=race-program")
	}
	w := newWorld(t)
	w.stand(w.session("web-1"), "", "billing")
	b := newTab(t, look{width: 1280})
	b.goes(w.at("election", "name", "billing"))
	b.until("#live", "live")
	if err := syscall.Kill(w.pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	b.until("#live", "not live since")
	if err := syscall.Kill(w.pid, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	b.when("the page is live again", `document.querySelector('#live').innerText.trim() === 'live'`)
}

// measured is how long something may take: on a machine that is known to be quiet, as long as is
// promised.
func measured(promised, busy time.Duration) time.Duration {
	if os.Getenv("PAGE_MEASURE") != "" {
		return promised
	}
	return busy
}

// Two thousand elections: the page opens at once, and costs next to nothing while it is open.
func TestTwoThousandElections(t *testing.T) {
	if testing.Short() {
		t.Skip("long: make verify VERIFY=race-program")
	}
	w := newWorld(t)
	const n = 2000
	var names []string
	for i := range n {
		names = append(names, fmt.Sprintf("tenant-%04d/worker", i))
	}
	es := w.session("web-1").Elections(nil)
	t.Cleanup(func() { _ = es.Close(context.Background()) })
	if err := es.Stand(names...); err != nil {
		t.Fatal(err)
	}
	led := 0
	for _, err := range es.Terms(w.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		if led++; led == n {
			break
		}
	}
	go func() {
		for range es.Terms(w.Context()) {
		}
	}()
	b := newTab(t, look{width: 1280})
	b.goes(w.at("store")) // the browser has the assets
	b.goes(w.at(""))
	b.until("#summary", "2000 elections")
	if rows := js[int](b, `document.querySelectorAll('#rows tr').length`); rows != 200 {
		t.Errorf("%d rows", rows)
	}
	b.until("#live", "live")
	if os.Getenv("PAGE_MEASURE") != "" {
		time.Sleep(90 * time.Second) // all histories have been written and read
		before, began := w.burnt(), time.Now()
		time.Sleep(30 * time.Second)
		part := float64(w.burnt()-before) / float64(time.Since(began))
		t.Logf("open, it costs %.1f %% of a core", 100*part)
		if part > 0.05 {
			t.Errorf("open, it costs %.1f %% of a core, want 5 %%", 100*part)
		}
		b.goes(w.at(""))
	}
	took := js[float64](b, `performance.getEntriesByType('navigation')[0].loadEventEnd`)
	t.Logf("it opened in %.0f ms: %s", took, ask[string](b, `(() => {
		const t = performance.getEntriesByType('navigation')[0], at = n => Math.round(t[n]);
		return 'answer from ' + at('responseStart') + ' to ' + at('responseEnd') +
			', parsed at ' + at('domInteractive') + ', script done at ' + at('domContentLoadedEventEnd') +
			performance.getEntriesByType('resource').map(e => '; ' + e.name.split('/').pop() + ' from ' +
				Math.round(e.startTime) + ' to ' + Math.round(e.responseEnd)).join('') })()`))
	if most := measured(300*time.Millisecond, 20*time.Second); took > float64(most.Milliseconds()) {
		t.Errorf("it opened in %.0f ms, want %v", took, most)
	}
	began := time.Now()
	last := w.session("zz")
	w.stand(last, "", "tenant-0000/a") // sorts first
	b.when("it is shown", `Boolean(document.querySelector('#rows a[href$="tenant-0000%2Fa"]'))`)
	t.Logf("one more was shown %v after it began to stand", time.Since(began).Round(time.Millisecond))
	freeze := js[float64](b, `new Promise(r => { const t = performance.now();
		setTimeout(() => r(performance.now() - t)) })`)
	if most := measured(200*time.Millisecond, 10*time.Second); freeze > float64(most.Milliseconds()) {
		t.Errorf("the page was frozen for %.0f ms", freeze)
	}
}

// burnt is how long the server has computed.
func (w *world) burnt() time.Duration {
	w.Helper()
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(w.pid), "stat"))
	if err != nil {
		w.Fatal(err)
	}
	f := strings.Fields(string(text[strings.LastIndexByte(string(text), ')'):]))
	var ticks int
	for _, s := range f[12:14] {
		n, err := strconv.Atoi(s)
		if err != nil {
			w.Fatal(err)
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}

// Whatever others wrote is text, in a real browser too.
func TestHostileNames(t *testing.T) {
	if testing.Short() {
		t.Skip("long: make verify VERIFY=race-program")
	}
	w := newWorld(t, "--ui-actions")
	evil := `"><script>window.pwned=1</script><img src=x onerror=window.pwned=1>`
	w.stand(w.session(evil), evil, evil, "\u202egnillib")
	w.stand(w.session("b"), "", evil)
	b := newTab(t, look{width: 360})
	token := w.leader(evil).Token.String()
	for _, at := range []string{w.at(""), w.at("", "prefix", evil), w.at("election", "name", evil), w.at("members"),
		w.at("member", "id", evil), w.at("act", "verb", "resign", "name", evil, "token", token),
		w.at("act", "verb", "drain", "member", evil)} {
		b.goes(at)
		if js[bool](b, `Boolean(window.pwned)`) {
			t.Fatalf("%s runs what others wrote", at)
		}
		b.shows("main", "<script>window.pwned=1</script>")
		b.fits(at)
	}
	b.goes(w.at("election", "name", evil))
	b.until("#live", "live")
	w.stand(w.session("c"), evil, evil) // by the stream too
	b.until("#line", "waits, 2")
	if js[bool](b, `Boolean(window.pwned)`) {
		t.Error("the stream runs what others wrote")
	}
}

// An update takes nothing away from whoever is in the middle of something.
func TestUpdatesKeepTheFocusAndTheOrder(t *testing.T) {
	if testing.Short() {
		t.Skip("long: make verify VERIFY=race-program")
	}
	w := newWorld(t)
	s := w.session("web-1")
	w.stand(s, "", "m-billing", "n-reports")
	b := newTab(t, look{width: 1280})
	b.goes(w.at(""))
	b.until("#live", "live")
	b.until("#rows", "n-reports")
	js[bool](b, `document.querySelector('#rows a[href*=n-reports]').focus(), true`)
	w.stand(w.session("web-2"), "", "a-first", "n-reports")
	b.until("#rows", "a-first")
	b.until("#rows .c-wait", "1")
	if got := js[string](b, `document.activeElement.innerText`); got != "n-reports" {
		t.Errorf("the focus has gone to %q", got)
	}
	order := `[...document.querySelectorAll('#rows th')].map(e => e.innerText).join(' ')`
	if got := js[string](b, order); got != "m-billing n-reports a-first" {
		t.Errorf("rows in use were moved: %s", got)
	}
	js[bool](b, `document.activeElement.blur(), true`)
	w.eventually("the rows are in order", func() bool { return js[string](b, order) == "a-first m-billing n-reports" })
}

// Without script all is read, and requests are made.
func TestWithoutScript(t *testing.T) {
	w := night(t, "--ui-actions")
	b := newTab(t, look{width: 1280, plain: true})
	for _, v := range w.views() {
		b.run(chromedp.Navigate(v[1]), chromedp.WaitReady("main"))
		html := get(b, chromedp.OuterHTML("main"))
		if len(html) < 120 || strings.Contains(html, "not live") {
			t.Errorf("%s reads %s", v[0], html)
		}
	}
	b.forgive()
	token := w.leader("exports/daily").Token.String()
	b.run(chromedp.Navigate(w.at("act", "verb", "resign", "name", "exports/daily", "token", token)),
		chromedp.SendKeys("#by", "ops@desk\r"))
	w.eventually("web-2 leads", func() bool { return w.leader("exports/daily").ID == "web-2" })
}

// The address that the dashboard prints logs in; without it nobody sees anything. It ends with the
// signal.
func TestTheDashboard(t *testing.T) {
	w := newStore(t)
	w.stand(w.session("web-1"), "", "billing")
	cmd, out := w.start("dashboard")
	if !out.Scan() {
		t.Fatal("it prints no address")
	}
	at := out.Text()
	b := newTab(t, look{width: 1280})
	b.goes(at)
	b.until("#rows", "billing")
	if here := js[string](b, `location.href`); strings.Contains(here, "#") {
		t.Errorf("the token stays in the address: %s", here)
	}
	b.until("#live", "live")
	other := newTab(t, look{width: 1280})
	bare, _, _ := strings.Cut(at, "login")
	other.goes(bare)
	other.shows("h1", "Log in")
	other.accessible("login")
	other.shoot("login")
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	for out.Scan() {
	}
	if err := cmd.Wait(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("it ended with %v", err)
	}
	b.until("#live", "not live since")
	b.forgive()
}

// TestTheDocsPictures makes the pictures of docs/page.md.
func TestTheDocsPictures(t *testing.T) {
	if os.Getenv("PAGE_DOCS") == "" {
		t.Skip("PAGE_DOCS is not set: it writes into docs/")
	}
	w := night(t)
	b := newTab(t, look{width: 1280})
	dir := filepath.Join("..", "..", "docs")
	b.goes(w.at(""))
	b.until("#rows", "ops@desk")
	b.picture(filepath.Join(dir, "page-overview.png"))
	b.goes(w.at("election", "name", "billing", "at", quarterPast3().Format(time.RFC3339)))
	b.until("#live", "live")
	b.picture(filepath.Join(dir, "page-election.png"))
}

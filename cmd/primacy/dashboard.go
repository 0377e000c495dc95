package main

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"os/user"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/cmd/internal/agent"
	"github.com/primacy-go/primacy/cmd/internal/doctor"
	"github.com/primacy-go/primacy/cmd/internal/page"
	"github.com/primacy-go/primacy/cmd/internal/shown"
	"github.com/primacy-go/primacy/cmd/internal/top"
	"github.com/primacy-go/primacy/driver"
	pauses "github.com/primacy-go/primacy/pause"
)

// pageOptions returns what the page of `primacy dashboard` and `primacy serve --ui` have in common.
func pageOptions(a *app, s *primacy.Session, st driver.Store, actions bool) page.Options {
	o := page.Options{Store: st, Session: s, Source: top.SourceOf(s, st, "", time.UTC), URL: doctor.Public(a.store),
		Value: valueText, Actions: actions, Drift: doctorDrift, Timeout: min(a.timeout, 5*time.Second),
		Logger: a.logger()}
	o.Pausable = pausable
	o.Effects = func(ctx context.Context, p pauses.Pause) (all []page.Effect, err error) {
		standing, err := pauses.List(ctx, st)
		if err != nil {
			return nil, err
		}
		left := slices.DeleteFunc(standing, func(one pauses.Pause) bool { return one.Scope == p.Scope })
		effects, err := effectsOf(ctx, s, st, p, left)
		for _, e := range effects {
			all = append(all, page.Effect(e))
		}
		return all, err
	}
	o.Sick = func(ctx context.Context) (map[string][]page.Sick, error) { return allUnhealthy(ctx, st) }
	o.Examine = func(ctx context.Context, tell func(doctor.Check)) *doctor.Report {
		window := 6 * time.Second
		ctx, cancel := context.WithTimeout(ctx, window+a.timeout+20*time.Second)
		defer cancel()
		return doctor.Examine(ctx, st, doctor.Options{TTL: a.ttl, Drift: doctorDrift, Window: window, Tries: 50,
			Tell: tell})
	}
	return o
}

// asker names who makes a request, where the connection says it: the kernel by the socket, or TLS
// by the client's certificate.
func asker(r *http.Request) string {
	if uid, ok := agent.Peer(r); ok {
		name := strconv.Itoa(uid)
		if u, err := user.LookupId(name); err == nil && u.Username != "" {
			name = u.Username
		}
		host, _ := os.Hostname()
		return strings.ToValidUTF8(name+"@"+host, "")
	}
	if r.TLS != nil && len(r.TLS.VerifiedChains) > 0 {
		return certified(r.TLS.PeerCertificates[0])
	}
	return ""
}

// certified names a client's certificate: by its common name, else by the first of its other names,
// else by its hash. It is never empty: whoever has one without a name could write any other name
// into the history.
func certified(c *x509.Certificate) string {
	names := append([]string{c.Subject.CommonName}, c.DNSNames...)
	names = append(names, c.EmailAddresses...)
	for _, u := range c.URIs {
		names = append(names, u.String())
	}
	for _, ip := range c.IPAddresses {
		names = append(names, ip.String())
	}
	for _, n := range names {
		if n = strings.TrimSpace(shown.Printable(n)); n != "" {
			return strings.ToValidUTF8(n[:min(len(n), primacy.MaxName)], "")
		}
	}
	return fmt.Sprintf("certificate sha256:%x", sha256.Sum256(c.Raw))
}

// pageStreams is how many tabs each listener of `primacy serve --ui` keeps up to date.
const pageStreams = 100

// uiServing is the part of `primacy serve` that is for people.
type uiServing struct {
	on, actions bool
	tokenFile   string
	token       string // that the page asks for
	page        *page.Page
}

func (u *uiServing) register(f *pflag.FlagSet) {
	f.BoolVar(&u.on, "ui", false, "serve a page for people too, below /ui/")
	f.StringVar(&u.tokenFile, "ui-token-file", "",
		"with --ui: file with the token to look at the page, with which nobody may act by the API (default that of "+
			"--token-file)")
	f.BoolVar(&u.actions, "ui-actions", false, "with --ui: who sees the page may ask leaders to hand over, and pause")
}

// check reads the token that the page asks for: its own, or that of the API.
func (u *uiServing) check(api string) (err error) {
	switch {
	case u.actions && !u.on:
		return errors.New("--ui-actions needs --ui")
	case u.tokenFile == "":
		u.token = api
		return nil
	case !u.on:
		return errors.New("--ui-token-file needs --ui")
	case api == "":
		return errors.New("--ui-token-file needs --token-file: without it the API at the same address asks for no " +
			"token, and whoever may only look at the page could act by it")
	}
	u.token, err = agent.LoadToken(u.tokenFile)
	switch {
	case err != nil:
		return fmt.Errorf("--ui-token-file: %w", err)
	case u.token == api:
		return fmt.Errorf("--ui-token-file: %s has the token of --token-file, with which one may act by the API: use "+
			"another", u.tokenFile)
	}
	return nil
}

// openPage makes the page, if that was asked for.
func (s *server) openPage(st driver.Store, o *agent.Options) (end func(), err error) {
	if !s.ui.on {
		return func() {}, nil
	}
	own, err := primacy.NewSession(st, &primacy.Options{ID: s.id, TTL: s.ttl, Logger: s.logger()})
	if err != nil {
		return nil, err
	}
	po := pageOptions(s.app, own, st, s.ui.actions)
	po.Token, po.Asker, po.Streams = s.ui.token, asker, min(s.streams, pageStreams)
	s.ui.page = page.New(po)
	o.Page = s.ui.page
	return func() { s.ui.page.Close(); closeSession(own) }, nil
}

func (u *uiServing) stop() {
	if u.page != nil {
		u.page.Stop()
	}
}

// sayPage says where the page is, of a listener that a browser can reach.
func (s *server) sayPage(addr net.Addr) {
	if _, tcp := addr.(*net.TCPAddr); s.ui.page == nil || !tcp {
		return
	}
	scheme := "http"
	if s.secured.TLS != nil {
		scheme = "https"
	}
	s.say("the page is at %s://%s%s", scheme, addr, page.Path)
}

// closeSession closes a session that holds nothing.
func closeSession(s *primacy.Session) {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	_ = s.Close(ctx)
}

type dashboardOptions struct {
	listen  string
	actions bool
}

func dashboardCommand(a *app) *cobra.Command {
	var o dashboardOptions
	c := &cobra.Command{
		Use:   "dashboard",
		Short: "Serve a page on this machine, to look at all elections and locks in a browser",
		Long: `Serve a page on loopback and print its address: all elections and locks, the worst first; the
history of each drawn to scale; members, jobs of cron, the store. The address has a token that is new each time:
without it no other user of this machine sees anything. With --ui-actions leaders can be asked to resign, to
hand over, or to be drained; each request is confirmed on a page of its own, and told in the history.

It ends with ^C. For a page that stays, or that other machines reach: primacy serve --ui (docs/page.md).`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return runDashboard(cmd.Context(), a, o) },
	}
	c.Flags().StringVar(&o.listen, "listen", "127.0.0.1:0", "HOST:PORT on loopback; port 0: any that is free")
	c.Flags().BoolVar(&o.actions, "ui-actions", false, "the page may ask leaders to hand over, and pause")
	return c
}

func runDashboard(ctx context.Context, a *app, o dashboardOptions) error {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	const streams = 50
	secured := agent.Secured{Conns: agent.ConnsFor(0, streams)}
	l, err := secured.ListenTCP(ctx, o.listen)
	if err != nil {
		return fmt.Errorf("%w; for other machines use primacy serve --ui", err)
	}
	defer l.Close()
	s, st, done, err := a.openSession(ctx, primacy.Options{}, false)
	if err != nil {
		return interrupted(ctx, err)
	}
	defer done()
	po := pageOptions(a, s, st, o.actions)
	po.Token, po.Person, po.Streams = rand.Text(), a.person(), streams
	p := page.New(po)
	defer p.Close()
	guard := agent.Guard{}
	errs := io.Discard
	if a.verbose {
		errs = a.stderr
	}
	srv, failed := secured.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if guard.Reaches(w, r) {
			p.ServeHTTP(w, r)
		}
	}), log.New(errs, "primacy: ", 0))
	at := (&url.URL{Scheme: "http", Host: l.Addr().String(), Path: page.Path + "login", Fragment: po.Token}).String()
	if a.output == "table" {
		fmt.Fprintln(a.stdout, at)
	} else if err := a.writeJSON(map[string]string{"url": at}); err != nil {
		return err
	}
	a.say("open that in a browser; it ends with ^C")
	select {
	case err = <-failed:
	case <-ctx.Done():
	}
	p.Stop()
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), 3*time.Second)
	defer cancel()
	if srv.Shutdown(end) != nil {
		_ = srv.Close()
	}
	return err
}

package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/primacy-go/primacy"
	"github.com/primacy-go/primacy/cmd/internal/agent"
	pgagent "github.com/primacy-go/primacy/cmd/internal/postgres/agent"
	pgconfig "github.com/primacy-go/primacy/cmd/internal/postgres/config"
	"github.com/primacy-go/primacy/cmd/internal/postgres/core"
	"github.com/primacy-go/primacy/cmd/internal/postgres/patroni"
	"github.com/primacy-go/primacy/cmd/internal/postgres/pgfile"
	"github.com/primacy-go/primacy/cmd/internal/postgres/record"
	"github.com/primacy-go/primacy/cmd/internal/telemetry"
)

// patroniSide is what a member shows to the tools of Patroni's users.
type patroniSide struct {
	listener net.Listener
	guard    patroni.Guard
}

// patroniStore is what both parts need of the store. *etcdstore.Store is one.
type patroniStore interface {
	postgresStore
	patroni.Store
}

// openPatroni listens, and reads what the API needs: what is wrong with that shows at once. It is
// nil where the file names no API.
func openPatroni(f *pgfile.File) (*patroniSide, error) {
	if f.API.Listen == "" {
		return nil, nil
	}
	guard, err := guardOf(f.API)
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", f.API.Listen)
	if err != nil {
		return nil, fmt.Errorf("api.listen: %w", err)
	}
	return &patroniSide{l, guard}, nil
}

// checkAPI says what is well with a member's API, or what is to be done.
func checkAPI(ctx context.Context, f *pgfile.File) (well string, err error) {
	p, err := openPatroni(f)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		if guard, err := guardOf(f.API); err != nil {
			return "", err
		} else if guard.TLS == nil && answers(ctx, f) {
			return f.API.Listen + ": the member, or Patroni, answers there already", nil
		}
		return "", fmt.Errorf("%w: another program listens there, or this member is running", err)
	case err != nil:
		return "", err
	}
	defer p.close()
	if well = f.API.Listen; p.guard.Open() {
		well += ": no authentication, so that only this machine may write"
	}
	return well, nil
}

// answers says whether that member answers at its API.
func answers(ctx context.Context, f *pgfile.File) bool {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+f.API.Listen+"/patroni", nil)
	if err != nil {
		return false
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	var said struct{ Patroni struct{ Scope, Name string } }
	err = json.NewDecoder(io.LimitReader(resp.Body, 1<<20)).Decode(&said)
	return err == nil && said.Patroni.Scope == f.Cluster && cmp.Or(said.Patroni.Name, f.Name) == f.Name
}

func (p *patroniSide) close() {
	if p != nil {
		_ = p.listener.Close()
	}
}

// guardOf reads the files of [api].
func guardOf(a pgfile.API) (g patroni.Guard, err error) {
	if a.TokenFile != "" {
		if err = unseen(a.TokenFile); err == nil {
			g.Token, err = agent.LoadToken(a.TokenFile)
		}
		if err != nil {
			return g, fmt.Errorf("api.token_file: %w", err)
		}
	}
	if a.AuthFile != "" {
		if err := unseen(a.AuthFile); err != nil {
			return g, fmt.Errorf("api.auth_file: %w", err)
		}
		text, err := os.ReadFile(a.AuthFile)
		if err != nil {
			return g, fmt.Errorf("api.auth_file: %w", err)
		}
		g.Basic, _, _ = strings.Cut(string(text), "\n")
		g.Basic = strings.TrimSuffix(g.Basic, "\r") // a password may end in a blank
		if user, password, ok := strings.Cut(g.Basic, ":"); !ok || user == "" || password == "" {
			return g, fmt.Errorf("api.auth_file: the first line of %s must be USER:PASSWORD", a.AuthFile)
		}
	}
	if a.Cert == "" {
		return g, nil
	}
	pair, err := tls.LoadX509KeyPair(a.Cert, a.Key)
	if err != nil {
		return g, fmt.Errorf("api.tls_cert: %w", err)
	}
	g.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12,
		NextProtos: []string{"http/1.1"}}
	if a.ClientCA != "" {
		pem, err := os.ReadFile(a.ClientCA)
		if err != nil {
			return g, fmt.Errorf("api.client_ca: %w", err)
		}
		g.TLS.ClientCAs, g.TLS.ClientAuth = x509.NewCertPool(), tls.VerifyClientCertIfGiven
		if !g.TLS.ClientCAs.AppendCertsFromPEM(pem) {
			return g, fmt.Errorf("api.client_ca: there is no certificate in %s", a.ClientCA)
		}
	}
	return g, nil
}

// unseen refuses a file of secrets that everybody on this machine may read or write.
func unseen(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if mode := info.Mode().Perm(); mode&0o007 != 0 {
		return fmt.Errorf("everybody on this machine may use %s (mode %04o): chmod 0600 %[1]s", path, mode)
	}
	return nil
}

// serve keeps Patroni's keys, and answers Patroni's REST, until ctx ends. It returns what waits for
// the end of both.
func (p *patroniSide) serve(ctx context.Context, v *postgresVerb, f *pgfile.File, a *pgagent.Agent,
	st patroniStore, session *primacy.Session,
) (wait func(), err error) {
	log := v.postgresLog()
	name := pgagent.Prefix + f.Cluster
	c := patroni.Config{Dir: pgconfig.Dir(f.Namespace, f.Cluster), Scope: f.Cluster, Name: f.Name, Address: f.Listen,
		URL: f.API.URL(), Tags: tagsOf(f)}
	quiet := *v.app
	quiet.stdout, quiet.stderr, quiet.id = io.Discard, io.Discard, "the API of "+f.Name
	shared := pgconfig.Of(st.Raw(), pgconfig.Key(f.Namespace, f.Cluster))
	verbs := &patroniVerbs{name: f.Name, at: &reached{cluster: &cluster{app: &quiet, name: f.Cluster},
		election: session.Election(name), record: record.New(st, name), shared: shared}}
	c.Restarts = &patroni.Restarts{Member: a, Verbs: verbs, Log: log}
	api := &patroni.API{Config: c, Member: a, Keys: st.Raw(), Verbs: verbs, Guard: p.guard,
		Shared: shared, Log: log}
	mirror := &patroni.Mirror{Config: c, Member: a, Store: st, Keys: st.Raw(), Election: name, Verbs: verbs, Log: log}
	figures, err := telemetry.New(session, telemetry.Options{Options: figures(false)})
	if err != nil {
		return nil, err
	}
	if err := figures.Registry.Register(patroni.Figures{Config: c, Member: a}); err != nil {
		figures.Close()
		return nil, err
	}
	api.Metrics = figures.Handler()
	var all sync.WaitGroup
	all.Go(func() { api.Serve(ctx, p.listener) })
	all.Go(func() { mirror.Run(ctx) })
	all.Go(func() { c.Restarts.Run(ctx) })
	return func() { all.Wait(); figures.Close() }, nil
}

// tagsOf returns a member's tags by Patroni's names; those that say nothing are left out.
func tagsOf(f *pgfile.File) map[string]any {
	tags := map[string]any{}
	if f.NoFailover {
		tags["nofailover"] = true
	}
	if f.NoSync {
		tags["nosync"] = true
	}
	if f.Priority > 0 {
		tags["failover_priority"] = f.Priority
	}
	return tags
}

// patroniVerbs are the program's own verbs, for who asks by Patroni's API.
type patroniVerbs struct {
	name string // of this member
	at   *reached
}

// asking is one verb, and how the cluster is now.
func (p *patroniVerbs) asking(ctx context.Context) (*asking, clusterJSON, error) {
	cmd := &cobra.Command{}
	cmd.SetContext(ctx)
	v := &asking{cluster: p.at.cluster, wait: awaitVerb, yes: true, cmd: cmd, reason: "Patroni's API"}
	j, err := p.at.now(ctx)
	if err == nil && j.Record == nil {
		err = fail(exitNo, "the cluster has no record yet: its first primary was not promoted")
	}
	return v, j, refused(err)
}

// awaitVerb is how long a verb waits until it is done; its context ends before.
const awaitVerb = 10 * time.Minute

// refused tells what was not asked of anybody from what is not done yet.
func refused(err error) error {
	var e *exitError
	if errors.As(err, &e) && e.code == exitNo {
		return patroni.Refused{Why: oneLine(err)}
	}
	return err
}

func (p *patroniVerbs) Switchover(ctx context.Context, from, to string) (string, error) {
	v, j, err := p.asking(ctx)
	if err != nil {
		return "", err
	}
	if from != "" && from != j.Primary {
		return "", patroni.Refused{Why: fmt.Sprintf("%s is not the primary any more", from)}
	}
	if why := j.refusal(to); why != "" {
		return "", patroni.Refused{Why: why}
	}
	now, err := v.switchOver(p.at, j, to, v.reason)
	return now.Primary, refused(err)
}

// asked says whether a pause is asked for, by instructions or the shared configuration. It is read
// after the record: what that says of a pause was asked for before.
func (p *patroniVerbs) asked(ctx context.Context) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, p.at.timeout)
	defer cancel()
	i, err := p.at.record.Instructions(ctx)
	if err != nil || i != nil && i.Paused != nil {
		return err == nil, err
	}
	d, _, err := p.at.shared.Read(ctx)
	if err != nil {
		return false, err
	}
	said, _, bad := d.Read()
	return bad == nil && said.Pause, nil
}

func (p *patroniVerbs) Pause(ctx context.Context) error {
	v, j, err := p.asking(ctx)
	if err != nil {
		return err
	}
	if asked, err := p.asked(ctx); err != nil || asked && j.Record.Paused != nil {
		return err
	}
	return refused(pauseCluster(v, p.at, j, nil))
}

func (p *patroniVerbs) Resume(ctx context.Context) error {
	v, j, err := p.asking(ctx)
	if err != nil {
		return err
	}
	if asked, err := p.asked(ctx); err != nil || !asked && j.Record.Paused == nil {
		return err
	}
	return refused(resumeCluster(v, p.at, j, false))
}

func (p *patroniVerbs) Restart(ctx context.Context) error {
	v, j, err := p.asking(ctx)
	if err != nil {
		return err
	}
	return refused(restartMembers(v, p.at, j, []string{p.name}))
}

// Reinit asks, and does not wait: who asks by Patroni's API looks himself when it is done.
func (p *patroniVerbs) Reinit(ctx context.Context) error {
	v, j, err := p.asking(ctx)
	if err != nil {
		return err
	}
	if err := j.reinitable(p.name, false); err != nil {
		return refused(err)
	}
	_, err = v.ask(p.at, p.name, core.Task{What: core.TaskReinit, Life: j.member(p.name).Incarnation})
	return refused(err)
}

package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"time"

	"github.com/primacy-go/primacy/cmd/internal/postgres/clone"
	"github.com/primacy-go/primacy/cmd/internal/postgres/core"
	"github.com/primacy-go/primacy/cmd/internal/postgres/record"
	"github.com/primacy-go/primacy/cmd/internal/postgres/server"
)

// Limits of orders that must not hang for ever. A copy of the primary's data and the start of a
// server take as long as they take; a rewind that is killed leaves data that must be cloned.
const (
	sealLimit = 5 * time.Second
	stopLimit = 10 * time.Second // of a clean stop; then SIGQUIT
	quitLimit = time.Second      // of SIGQUIT and SIGKILL: a process that waits for its disk obeys neither
	readLimit = time.Second
	// Of the questions before a directory is made anew.
	reinitLimit = 20 * time.Second

	promoteLimit = 3 * time.Second // then another member is tried
)

// action returns what carries out an order. The loop calls action, which reads the loop's fields;
// the order's goroutine calls what it returns, which must not. work is the agent's context, for
// what goes on when the order is done.
func (a *Agent) action(work context.Context, order *core.Order, o core.Observation) func(context.Context) core.Done {
	keep := a.states.next()
	switch do := order.Do.(type) {
	case core.Persist:
		return plain(func(context.Context) error { return keep(do.State) })
	case core.Start:
		adopted := adopting(a.member.State())
		return plain(func(ctx context.Context) error { return start(ctx, a, adopted) })
	case core.Stop:
		return func(ctx context.Context) core.Done { return a.stop(ctx, do.Fast, o.Server.Primary) }
	case core.Seal:
		return limited(sealLimit, a.server.Seal)
	case core.Read:
		return a.readPosition
	case core.Say:
		a.claim.say(func(s *Said) { s.Answer = &do.Answer })
		return limited(readLimit, func(ctx context.Context) error {
			a.notes.hurry()
			return a.claim.tell(ctx)
		})
	case core.Follow:
		return a.follow(do.Primary)
	case core.Initdb:
		return a.initdb(do, keep)
	case core.Clone:
		return a.fromPrimary(*o.Record, func(ctx context.Context, from clone.Source) error {
			if err := keep(do.State); err != nil {
				return err
			}
			return a.disk.Clone(ctx, from, progress(a.cfg.Log, "clone"))
		})
	case core.Rewind:
		return a.fromPrimary(*o.Record, func(ctx context.Context, from clone.Source) error {
			if err := keep(do.State); err != nil {
				return err
			}
			return a.rewind(ctx, from)
		})
	case core.Write, core.Mark:
		return a.write(work, do, o)
	case core.SetSync:
		return a.setSync(work, order.ID, do.Sync)
	case core.Bind:
		return a.bind()
	case core.Unbind: // it still ends with this process
		return limited(a.cfg.TTL, func(ctx context.Context) error { return a.runner.process().Unbind(ctx) })
	case core.Reinit:
		return a.fromPrimary(*o.Record, func(ctx context.Context, from clone.Source) error {
			ctx, cancel := context.WithTimeout(ctx, reinitLimit)
			defer cancel()
			return a.disk.Reinit(ctx, from)
		})
	case core.Promote:
		return a.promote(do.Timeline)
	case core.Checkpoint:
		return plain(func(context.Context) error {
			go checkpoint(work, a.server, a.cfg.Log, func() {
				a.send(work, func() { a.seen.Server.Checkpointed = max(a.seen.Server.Checkpointed, order.ID) })
			})
			return nil
		})
	case core.Transfer:
		return a.transfer(do)
	}
	panic(fmt.Sprintf("no such order: %T", order.Do))
}

func plain(f func(context.Context) error) func(context.Context) core.Done {
	return func(ctx context.Context) core.Done { return core.Done{Err: f(ctx)} }
}

func limited(limit time.Duration, f func(context.Context) error) func(context.Context) core.Done {
	return plain(func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		return f(ctx)
	})
}

// stop ends the server. A clean stop of a primary says where its WAL ends.
func (a *Agent) stop(ctx context.Context, fast, primary bool) (d core.Done) {
	quit := limited(quitLimit, func(ctx context.Context) error { return a.server.Stop(ctx, server.Quit) })
	if !fast {
		return quit(ctx)
	}
	clean, cancel := context.WithTimeout(ctx, stopLimit)
	defer cancel()
	if a.server.Stop(clean, server.Fast) != nil {
		return quit(ctx)
	}
	if primary {
		at, ok, err := a.server.StoppedAt(ctx)
		if ok && err == nil {
			d.LSN = at.LSN
		}
	}
	return d
}

func (a *Agent) readPosition(ctx context.Context) (d core.Done) {
	ctx, cancel := context.WithTimeout(ctx, readLimit)
	defer cancel()
	at, err := a.server.Position(ctx)
	if err == nil && at.Primary {
		err = server.ErrPrimary
	}
	d = core.Done{Err: err, Position: at.Position, Complete: at.Complete}
	if err != nil || !d.Complete {
		d.Recovering = a.server.Recovering()
	}
	return d
}

// address returns where a member's PostgreSQL listens, as it says itself.
func (a *Agent) address(name string) (host, port string, err error) {
	address := a.heard[name].Address
	if address == "" {
		return "", "", errUnknownMember
	}
	return net.SplitHostPort(address)
}

func (a *Agent) follow(primary core.Identity) func(context.Context) core.Done {
	me := core.Identity{Name: a.cfg.Name, Incarnation: a.member.State().Incarnation}
	host, port, err := a.address(primary.Name)
	return plain(func(ctx context.Context) error {
		if err != nil {
			return err
		}
		return a.server.Follow(ctx, server.Upstream{Host: host, Port: port, As: me.String(),
			Slot: server.SlotName(a.cfg.Name)})
	})
}

func (a *Agent) initdb(do core.Initdb, keep func(core.State) error) func(context.Context) core.Done {
	return func(ctx context.Context) (d core.Done) {
		if d.Err = keep(do.State); d.Err != nil {
			return d
		}
		if do.State.SystemID, d.Err = a.disk.Initdb(ctx); d.Err == nil {
			d.SystemID, d.Err = do.State.SystemID, keep(do.State)
		}
		return d
	}
}

// fromPrimary carries out an order that needs the record's primary as a source.
func (a *Agent) fromPrimary(r core.Record, do func(context.Context, clone.Source) error,
) func(context.Context) core.Done {
	host, port, err := a.address(r.Primary.Name)
	from := clone.Source{SystemID: r.SystemID}
	if err == nil {
		from.Conninfo, err = a.cfg.Server.Replication.Conninfo(host, port, "")
	}
	return plain(func(ctx context.Context) error {
		if err != nil {
			return err
		}
		return do(ctx, from)
	})
}

func (a *Agent) rewind(ctx context.Context, from clone.Source) error {
	loss, err := a.disk.Rewind(ctx, from, progress(a.cfg.Log, "rewind"))
	if loss != nil {
		a.discarded.count(a.dir)
		a.cfg.Log.Warn("WAL of this member was discarded: see 'primacy postgres lost'", "saved", loss.Dir,
			"bytes", loss.Bytes, "commits", loss.Commits)
	}
	return err
}

func progress(log *slog.Logger, what string) func(string) {
	return func(line string) { log.Info(what, "progress", line) }
}

// write writes the record, or what was found in its place. The first record says that the data of
// the cluster are whole.
func (a *Agent) write(work context.Context, do core.Action, o core.Observation) func(context.Context) core.Done {
	if m, ok := do.(core.Mark); ok {
		return limited(a.cfg.TTL, func(ctx context.Context) error {
			defer a.send(work, func() { a.read(work) })
			return a.record.Mark(ctx, o.Record, m.Lost)
		})
	}
	r, token := do.(core.Write).Record, o.Own.Token
	return func(ctx context.Context) core.Done {
		writeCtx, cancel := context.WithTimeout(ctx, a.cfg.TTL)
		defer cancel()
		err := a.record.Write(writeCtx, r, token)
		number := a.reads.Add(1)
		rec, lost, readErr := recordOf(writeCtx, a)
		if readErr == nil && rec != nil && r.Seq == 1 && rec.Primary == r.Primary { // this try, or one before
			err = a.disk.Finish(r.SystemID)
		}
		a.send(work, func() { // not the order's context: a stop may have ended that
			if readErr != nil {
				a.seen.Read = false
			}
			if readErr != nil || !a.sawRecord(rec, lost, token, number) {
				a.read(work)
			}
		})
		return core.Done{Err: err, Unknown: err != nil && !errors.Is(err, record.ErrConflict)}
	}
}

// setSync sets the SSN in a form in which each walsender shows that it has loaded it.
func (a *Agent) setSync(work context.Context, id uint64, s core.Sync) func(context.Context) core.Done {
	former := a.former
	a.former = append(slices.Clone(former), s.Names...)
	y := server.Sync{Names: s.Names, Acks: s.Acks, Alone: s.Kind == core.SyncAlone}
	p := &proof{id: id, sync: y, former: former}
	marked := s.Kind == core.SyncAny
	return limited(sealLimit, func(ctx context.Context) error {
		if err := a.ssn.set(ctx, p, marked); err != nil {
			return err
		}
		go a.ssn.prove(work, p, func(at core.LSN) { a.send(work, func() { a.sawProof(p, at) }) })
		return nil
	})
}

// bind has the guardian confirm the term's deadline, before the server may become a primary.
func (a *Agent) bind() func(context.Context) core.Done {
	term := a.term
	return func(ctx context.Context) core.Done {
		p := a.runner.process()
		if p == nil {
			return core.Done{Err: server.ErrNotUp}
		}
		err := p.Bind(ctx, term.Deadline())
		p.Extend(term.Deadline()) // a renewal may have come while the server was not bound
		return core.Done{Err: err}
	}
}

// promote promotes, if the term lives; core has seen that a third of it is left. The server's own
// checkpoint after that takes its time, so one at once is asked for. Until one is complete nobody
// can be rewound from this server. Nor can this server be, should it be killed before: its control
// file names the former timeline, which pg_rewind of PostgreSQL 13 to 15 believes.
func (a *Agent) promote(to core.Timeline) func(context.Context) core.Done {
	term := a.term
	return func(ctx context.Context) core.Done {
		if err := term.Check(); err != nil {
			return core.Done{Err: err}
		}
		ctx, cancel := context.WithTimeout(ctx, promoteLimit)
		defer cancel()
		err := a.server.Promote(ctx, to)
		if err == nil {
			go func() {
				if err := a.server.Checkpoint(context.WithoutCancel(ctx)); err != nil {
					a.cfg.Log.Warn("the checkpoint after a promotion", "err", err)
				}
			}()
		}
		return core.Done{Err: err}
	}
}

// checkpoint calls written once the server has written a checkpoint. It gives up when the server is
// gone.
func checkpoint(ctx context.Context, s *server.Server, log *slog.Logger, written func()) {
	for ; ctx.Err() == nil; pause(ctx, time.Second) {
		if _, ok := s.Running(); !ok {
			return
		}
		err := s.Checkpoint(ctx)
		if err == nil {
			written()
			return
		}
		log.Warn("the checkpoint before a switchover", "err", err)
	}
}

func (a *Agent) transfer(do core.Transfer) func(context.Context) core.Done {
	term := a.term
	return func(ctx context.Context) core.Done {
		ctx, cancel := context.WithTimeout(ctx, term.TTL())
		defer cancel()
		term.Explain(do.Why, false)
		var err error
		if do.To == "" {
			err = term.Resign(ctx)
		} else {
			err = term.Transfer(ctx, do.To)
		}
		return core.Done{Err: err}
	}
}

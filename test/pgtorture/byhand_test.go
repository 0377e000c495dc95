//go:build linux

package pgtorture

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// settingFaults are a person's ALTER SYSTEM.
func settingFaults() []fault {
	return []fault{
		{"SSN overridden by hand", overrideSSN},
		{"primary_conninfo overridden by hand", overrideConninfo},
		{"primary_conninfo overridden, primary's machine frozen", overrideConninfoAndFail},
		{"ALTER SYSTEM again and again, failover", alterSystemInFailover},
		{"ALTER SYSTEM again and again, switchover", func(r *round) (string, error) {
			stop := r.alterSystem()
			detail, err := r.switchover(nil)
			return fmt.Sprintf("%s, %d times", detail, stop()), err
		}},
	}
}

// override sets a setting on a machine, and has it loaded.
func (r *round) override(m *machine, name, value string) error {
	_, err := r.ask(m, fmt.Sprintf("ALTER SYSTEM SET %s = '%s'", name, strings.ReplaceAll(value, "'", "''")))
	if err == nil {
		_, err = r.ask(m, "SELECT pg_reload_conf()")
	}
	return err
}

// overrideSSN has commits wait for somebody who does not exist.
func overrideSSN(r *round) (string, error) {
	err := r.override(r.primary, "synchronous_standby_names", "somebody_else")
	err = errors.Join(err, r.tells("commits wait for standbys"))
	r.untilTaken()
	return r.primary.name, err
}

// overrideConninfo has a standby follow nobody who answers.
func overrideConninfo(r *round) (string, error) {
	m := r.standby()
	err := r.override(m, "primary_conninfo", "host=127.0.0.1 port=1")
	return m.name, errors.Join(err, r.tells("no WAL comes from "+r.primary.name))
}

// overrideConninfoAndFail has both standbys follow the primary by a person's word, and freezes it.
// They must not listen to it any more when it comes back.
func overrideConninfoAndFail(r *round) (string, error) {
	var err error
	for _, m := range r.standbys {
		err = errors.Join(err, r.override(m, "primary_conninfo", fmt.Sprintf("host=%s port=%s user=replicator "+
			"password=secret application_name=%s", r.primary.host, r.primary.port, m.name)))
	}
	if err != nil {
		return "", err
	}
	time.Sleep(r.between(0, time.Second))
	return r.frozenMachine(r.primary, r.untilTaken)
}

// alterSystem sets something that is nobody's business on all machines, again and again, until stop
// is called, which says how often. PostgreSQL reads the file of such settings, and writes it anew a
// moment later.
func (r *round) alterSystem() (stop func() int64) {
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	var times atomic.Int64
	for _, m := range r.machines {
		all.Go(func() {
			for ctx.Err() == nil {
				conn, err := connect(ctx, m)
				for n := 0; err == nil; n++ {
					_, err = query(ctx, conn, fmt.Sprintf("ALTER SYSTEM SET work_mem = '%dMB'", 1+n%8))
					if err == nil {
						_, err = query(ctx, conn, "SELECT pg_reload_conf()")
						times.Add(1)
					}
					pause(ctx, time.Millisecond)
				}
				if conn != nil {
					_ = conn.Close(context.Background())
				}
				pause(ctx, 50*time.Millisecond) // the server is away
			}
		})
	}
	return func() int64 {
		cancel()
		all.Wait()
		return times.Load()
	}
}

func alterSystemInFailover(r *round) (string, error) {
	stop := r.alterSystem()
	time.Sleep(r.between(0, 500*time.Millisecond))
	detail, err := r.outage(r.primary, r.untilTaken)
	return fmt.Sprintf("%s, %d times", detail, stop()), err
}

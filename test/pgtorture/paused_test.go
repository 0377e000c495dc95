//go:build linux

package pgtorture

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// pausedFaults meet a cluster that a person has paused for work on its store.
func pausedFaults() []fault {
	return []fault{
		{"paused, all of etcd frozen", func(r *round) (string, error) {
			return r.paused(nil, func() error {
				for _, s := range r.etcd.Members {
					s.Stop()
				}
				time.Sleep(r.between(r.ttl, r.longer()))
				for _, s := range r.etcd.Members {
					s.Cont()
				}
				return nil
			})
		}},
		{"paused, primary's machine killed", func(r *round) (string, error) {
			return r.paused(nil, func() error {
				err := r.primary.off()
				time.Sleep(r.between(r.ttl, r.longer()))
				return errors.Join(err, r.primary.on())
			})
		}},
		{"paused, primary's machine killed, resumed by force", func(r *round) (string, error) {
			return r.paused([]string{"--force"}, func() error {
				err := r.primary.off()
				time.Sleep(r.between(0, r.ttl))
				return err
			})
		}},
	}
}

// paused does harm while the cluster is paused: nobody else may be promoted. Then it is resumed.
func (r *round) paused(how []string, harm func() error) (string, error) {
	o, ok := r.keeper.(*ours)
	if !ok {
		return "", errMissed
	}
	verb := func(args ...string) error {
		text, err := o.cli(r.cluster, 40*time.Second, append([]string{"postgres"}, args...)...)
		if err != nil {
			return fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, text)
		}
		return nil
	}
	if err := verb("pause", "--cluster", scope, "--wait", "20s"); err != nil {
		return "", err
	}
	err := harm()
	if r.taken() {
		err = errors.Join(err, errors.New("another member was promoted during the pause"))
	}
	resume := append([]string{"resume", "--cluster", scope, "--wait", "30s"}, how...)
	return r.primary.name, errors.Join(err, verb(resume...))
}

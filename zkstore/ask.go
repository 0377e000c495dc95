package zkstore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/primacy-go/primacy/driver"
)

var (
	_ driver.Lister  = (*Store)(nil)
	_ driver.Asker   = (*Store)(nil)
	_ driver.Revoker = (*Store)(nil)
	_ driver.Admin   = (*Store)(nil)
)

// letter is a request in a lease's mail node.
type letter struct {
	Name    string         `json:"name"`
	Request driver.Request `json:"request"`
}

// maxMail is how many requests wait in a mail node; older ones are dropped.
const maxMail = 32

// Ask brings r to the lease that holds name under r.Token: into its mail node, which is watched, in a step that also asks for the claim.
func (s *Store) Ask(ctx context.Context, name string, r driver.Request) error {
	l, err := s.main(ctx)
	if err == nil {
		err = s.barrier(ctx, l)
	}
	if err != nil {
		return err
	}
	for {
		nodes, at, err := s.find(ctx, l, name, r.Token)
		if err != nil {
			return err
		}
		if at != 0 {
			return driver.ErrGone
		}
		if nodes[0].slots != 0 {
			return fmt.Errorf("%s is shared: nobody holds it alone: %w", name, driver.ErrRefused)
		}
		mail := s.at("@mail", nodes[0].lease)
		got, _, err := l.look(ctx, ofNode, mail, false)
		if err != nil {
			return err
		}
		if !got.exists {
			return driver.ErrGone
		}
		letters := append(open(got.data), letter{name, r})
		data, err := json.Marshal(letters[max(0, len(letters)-maxMail):])
		if err != nil {
			return fmt.Errorf("request for %s: %v: %w", name, err, driver.ErrRefused)
		}
		if len(data) > maxValue {
			return fmt.Errorf("request for %s: too large: %w", name, driver.ErrRefused)
		}
		_, err = multi(ctx, l, &zk.CheckVersionRequest{Path: nodes[0].path, Version: -1}, &zk.SetDataRequest{Path: mail, Data: data, Version: got.stat.Version})
		switch {
		case errors.Is(err, zk.ErrNoNode):
			return driver.ErrGone
		case !errors.Is(err, zk.ErrBadVersion): // then somebody else has asked too
			return err
		}
	}
}

func open(data []byte) (letters []letter) {
	_ = json.Unmarshal(data, &letters) // what others wrote there is no request
	return letters
}

// readMail tells the requests that arrive in the lease's mail node, and empties it.
func (l *lease) readMail() {
	for try := 1; ; {
		got, w, err := l.link.look(context.Background(), ofNode, l.mail, true)
		switch {
		case l.link.over() || err == nil && !got.exists:
			return
		case err != nil:
			l.link.pause(try)
			try++
			continue
		}
		try = 1
		if letters := open(got.data); len(letters) > 0 {
			l.deliver(letters) // before they are taken out: told twice is better than not at all
			_, err := call(context.Background(), l.link, func(c *zk.Conn) (*zk.Stat, error) { return c.Set(l.mail, []byte{}, got.stat.Version) })
			if err != nil && !errors.Is(err, zk.ErrBadVersion) {
				l.link.pause(1)
			}
			continue
		}
		select {
		case <-w.fired:
		case <-time.After(slowly):
		case <-l.link.dead:
			return
		}
	}
}

// deliver tells requests for terms that are not over.
func (l *lease) deliver(letters []letter) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, m := range letters {
		for _, c := range l.claims {
			if c.want.Name == m.Name && c.token == m.Request.Token && !c.isGone {
				l.tell(driver.News{Place: l.place(c, true), Request: &m.Request})
			}
		}
	}
}

// Revoke ends the lease of that ID. Its session may live on, in a process that nobody reaches, but it has no claims and can make none: each create asks
// for the node that is deleted first here, as each renewal does for another.
func (s *Store) Revoke(ctx context.Context, id string) error {
	if !isLease(id) {
		return nil // no lease of ours ever had it
	}
	l, err := s.main(ctx)
	if err != nil {
		return err
	}
	if err := s.bury(ctx, l, id, nil); err != nil {
		return err
	}
	if err := s.barrier(ctx, l); err != nil {
		return err
	}
	names, err := s.names(ctx, l, s.root, "")
	if err != nil {
		return err
	}
	return each(len(names), func(i int) error {
		nodes, _, _, _, err := s.children(ctx, l, names[i], false)
		if err != nil {
			return err
		}
		nodes = slices.DeleteFunc(nodes, func(n node) bool { return n.lease != id })
		return each(len(nodes), func(i int) error { return s.remove(ctx, l, nodes[i].path) })
	})
}

func isLease(id string) bool {
	_, err := strconv.ParseUint(id, 16, 64)
	return err == nil && len(id) == 16 && strings.ToLower(id) == id
}

// EndLease does as Revoke.
func (s *Store) EndLease(ctx context.Context, id string) error {
	if !isLease(id) {
		return fmt.Errorf("end lease: %q is not the ID of a lease, 16 digits of a session: %w", id, driver.ErrRefused)
	}
	return s.Revoke(ctx, id)
}

// Leases returns the IDs of the leases whose owner begins with prefix.
func (s *Store) Leases(ctx context.Context, prefix string) (ids []string, err error) {
	l, err := s.main(ctx)
	if err == nil {
		err = s.barrier(ctx, l)
	}
	if err != nil {
		return nil, err
	}
	dir, _, err := l.look(ctx, ofChildren, s.at("@leases"), false)
	if err != nil {
		return nil, err
	}
	owned := make([]bool, len(dir.children))
	err = each(len(dir.children), func(i int) error {
		got, _, err := l.look(ctx, ofNode, s.at("@leases", dir.children[i]), false)
		owner, _ := decode(append(got.data, '\n'))
		owned[i] = got.exists && strings.HasPrefix(owner, prefix)
		return err
	})
	for i, id := range dir.children {
		if owned[i] {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids, err
}

// RemoveClaim deletes the claim on name that has this token.
func (s *Store) RemoveClaim(ctx context.Context, name string, token uint64) error {
	l, err := s.main(ctx)
	if err == nil {
		err = s.barrier(ctx, l)
	}
	if err != nil {
		return err
	}
	nodes, at, err := s.find(ctx, l, name, token)
	if err != nil || at < 0 {
		return err
	}
	return s.remove(ctx, l, nodes[at].path)
}

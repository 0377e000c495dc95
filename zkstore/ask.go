package zkstore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/primacy-go/primacy/driver"
)

var (
	_ driver.Asker = (*Store)(nil)
	_ driver.Admin = (*Store)(nil)
)

// letter is a request in a lease's mail node.
type letter struct {
	Name    string         `json:"name"`
	Request driver.Request `json:"request"`
}

// maxMail is how many requests wait in a mail node; older ones are dropped.
const maxMail = 32

// Ask brings r to the lease that holds name under r.Token: into its mail node, which is watched, in
// a step that also asks for the claim.
func (s *Store) Ask(ctx context.Context, name string, r driver.Request) error {
	t, err := s.current(ctx)
	if err != nil {
		return err
	}
	for {
		nodes, at, err := t.find(ctx, name, r.Token)
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
		got, err := t.look(ctx, ofNode, mail)
		if err != nil {
			return err
		}
		if !got.exists {
			return driver.ErrGone
		}
		letters := append(readLetters(got.data), letter{name, r})
		data, err := json.Marshal(letters[max(0, len(letters)-maxMail):])
		if err != nil {
			return fmt.Errorf("request for %s: %v: %w", name, err, driver.ErrRefused)
		}
		if len(data) > maxValue {
			return fmt.Errorf("request for %s: too large: %w", name, driver.ErrRefused)
		}
		_, err = t.multi(ctx, existsOp(nodes[0].path),
			setOp(mail, data, got.stat.version))
		switch {
		case errors.Is(err, errNoNode):
			return driver.ErrGone
		case !errors.Is(err, errBadVersion): // then somebody else has asked too
			return err
		}
	}
}

func readLetters(data []byte) (letters []letter) {
	_ = json.Unmarshal(data, &letters) // what others wrote there is no request
	return letters
}

// request has News tell a request, if its term is not over.
func (cs *claims) request(m letter) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	for _, c := range cs.bySeat {
		if c.want.Name == m.Name && c.token == m.Request.Token && !c.isGone() {
			cs.news.add(driver.News{Place: c.place(true), Request: &m.Request})
		}
	}
}

// Revoke ends the lease of that ID. Its session may live on, in a process that nobody reaches, but
// it has no claims and can neither make one nor renew: both need nodes that are deleted first here.
func (s *Store) Revoke(ctx context.Context, id string) error {
	if !isLease(id) {
		return nil // no lease of ours ever had it
	}
	t, err := s.begun(ctx, func(t tree) error { return t.endLease(ctx, id, nil) })
	if err != nil {
		return err
	}
	if err := t.barrier(ctx); err != nil {
		return err
	}
	names, err := t.names(ctx, s.root, "")
	if err != nil {
		return err
	}
	return parallel(len(names), func(i int) error {
		ln, err := t.line(ctx, names[i], false)
		var paths []string
		for _, n := range ln.nodes {
			if n.lease == id {
				paths = append(paths, n.path)
			}
		}
		if err != nil {
			return err
		}
		return t.removeAll(ctx, paths)
	})
}

func isLease(id string) bool {
	_, err := strconv.ParseUint(id, 16, 64)
	return err == nil && len(id) == 16 && strings.ToLower(id) == id
}

// Leases returns the IDs of the leases whose owner begins with prefix.
func (s *Store) Leases(ctx context.Context, prefix string) (ids []string, err error) {
	t, err := s.current(ctx)
	if err != nil {
		return nil, err
	}
	dir, err := t.look(ctx, ofChildren, s.at("@leases"))
	if err != nil {
		return nil, err
	}
	paths := make([]string, len(dir.children))
	for i, id := range dir.children {
		paths[i] = s.at("@leases", id)
	}
	found, err := t.lookAll(ctx, ofNode, paths)
	for i, got := range found {
		if owner, _ := decode(append(got.data, '\n')); got.exists && strings.HasPrefix(owner, prefix) {
			ids = append(ids, dir.children[i])
		}
	}
	slices.Sort(ids)
	return ids, err
}

// RemoveClaim deletes the claim on name that has this token.
func (s *Store) RemoveClaim(ctx context.Context, name string, token uint64) error {
	t, err := s.current(ctx)
	if err != nil {
		return err
	}
	nodes, at, err := t.find(ctx, name, token)
	if err != nil || at < 0 {
		return err
	}
	return t.remove(ctx, nodes[at].path)
}

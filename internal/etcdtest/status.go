package etcdtest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"time"
)

// status is what etcd's HTTP gateway says about a member. It writes 64-bit numbers as strings.
type status struct {
	Header struct {
		MemberID string `json:"member_id"`
	} `json:"header"`
	Leader string `json:"leader"`
}

// Post calls etcd's HTTP gateway at path ("/v3/…") with a JSON request, and decodes the answer
// into out unless nil.
func (s *Server) Post(path string, in, out any) error {
	s.mu.Lock()
	user, password := s.user, s.password
	s.mu.Unlock()
	var auth struct {
		Token string `json:"token"`
	}
	if user != "" {
		if err := s.post("/v3/auth/authenticate", "", map[string]string{"name": user, "password": password},
			&auth); err != nil {
			return err
		}
	}
	return s.post(path, auth.Token, in, out)
}

// Login has the helper's own questions asked as this user, once the cluster has authentication.
func (c *Cluster) Login(user, password string) {
	for _, s := range c.Members {
		s.mu.Lock()
		s.user, s.password = user, password
		s.mu.Unlock()
	}
}

func (s *Server) post(path, token string, in, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	req, err := http.NewRequest(http.MethodPost, s.Endpoint()+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	if token != "" {
		req.Header.Set("Authorization", token)
	}
	client := &http.Client{Timeout: 2 * time.Second, Transport: &http.Transport{TLSClientConfig: s.clientTLS(),
		DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		var why bytes.Buffer
		_, _ = why.ReadFrom(resp.Body)
		return fmt.Errorf("%s: %s: %s", path, resp.Status, why.String())
	}
	if out == nil {
		return nil
	}
	return json.NewDecoder(resp.Body).Decode(out)
}

func (s *Server) status() (st status, err error) {
	err = s.Post("/v3/maintenance/status", struct{}{}, &st)
	return st, err
}

// Leader returns the member that leads as the others see it, or nil while none does. It asks all
// at once: a frozen one costs two seconds.
func (c *Cluster) Leader() *Server {
	var mu sync.Mutex
	var wg sync.WaitGroup
	votes := map[string]int{}
	byID := map[string]*Server{}
	for _, s := range c.Members {
		wg.Go(func() {
			st, err := s.status()
			if err != nil {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			byID[st.Header.MemberID] = s
			votes[st.Leader]++
		})
	}
	wg.Wait()
	for id, n := range votes {
		if n > len(c.Members)/2 {
			return byID[id]
		}
	}
	return nil
}

// WaitLeader returns the member that leads, once there is one.
func (c *Cluster) WaitLeader() *Server {
	c.tb.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if s := c.Leader(); s != nil {
			return s
		}
	}
	c.tb.Fatal("etcdtest: no leader after a minute")
	return nil
}

// MoveLeader makes to the leader, and returns when the others see it so.
func (c *Cluster) MoveLeader(to *Server) {
	c.tb.Helper()
	if err := c.Move(to, time.Minute); err != nil {
		c.tb.Fatal(err)
	}
}

// Move is MoveLeader with a time limit, and an error instead of the test's end.
func (c *Cluster) Move(to *Server, limit time.Duration) error {
	var last error
	for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		from := c.Leader()
		if from == to {
			return nil
		}
		st, err := to.status()
		if from == nil || err != nil {
			continue
		}
		last = from.Post("/v3/maintenance/transfer-leadership", map[string]string{"targetID": st.Header.MemberID}, nil)
	}
	return fmt.Errorf("etcdtest: %s did not become leader in %v: %v", to.name, limit, last)
}

package zktest_test

import (
	"crypto/tls"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/primacy-go/primacy/internal/servertest"
	"github.com/primacy-go/primacy/internal/zktest"
)

func TestAServerServesDiesAndComesBack(t *testing.T) {
	s := zktest.Start(t, zktest.Options{})
	s.Restart()
	s.Kill()
	if _, err := s.Ask("srvr"); err == nil {
		t.Error("a killed server answers")
	}
	if err := s.Launch(); err != nil {
		t.Fatal(err)
	}
	if err := s.Ready(time.Minute); err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(s.URL(), "zk://127.0.0.1:") {
		t.Errorf("URL = %s", s.URL())
	}
}

func TestAnEnsembleHasALeaderAlsoWhenOneIsCutOff(t *testing.T) {
	servertest.Long(t, "race-library")
	if os.Getenv("PRIMACY_ZK") == "" {
		t.Skip("PRIMACY_ZK=all: zkstore's own tests cut an ensemble too")
	}
	e := zktest.StartEnsemble(t, 3, zktest.Options{Cuttable: true})
	was := e.Leader()
	if was < 0 {
		t.Fatal("nobody leads")
	}
	e.Isolate(was, true)
	for end := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		if now := e.Leader(); now >= 0 && now != was {
			break
		} else if time.Now().After(end) {
			t.Fatal("nobody took over from a leader that is cut off")
		}
	}
	e.Isolate(was, false)
	if err := e.Members[was].Ready(30 * time.Second); err != nil {
		t.Error(err)
	}
}

func TestTheClientsPortSpeaksTLS(t *testing.T) {
	servertest.Long(t, "race-library")
	cert := zktest.NewCert(t)
	s := zktest.Start(t, zktest.Options{TLS: cert})
	conn, err := tls.Dial("tcp", s.Addr(), cert.Client)
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
}

package main

import (
	"bufio"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Apache Curator's InterProcessMutex, where Java's compiler and Debian's libcurator-recipes-java
// are installed. One Java process serves all clients of this one, each a Curator of its own; a pipe
// to it takes some 20 µs of a millisecond.
func init() {
	if _, err := curatorJars(); err == nil {
		contenders = append(contenders, &Contender{Name: "curator", Store: "zookeeper", Local: true, Dial: dialCurator})
	}
}

//go:embed CuratorPeer.java
var curatorSource string

// curatorJars returns the class path.
func curatorJars() (string, error) {
	if _, err := exec.LookPath("javac"); err != nil {
		return "", err
	}
	var all []string
	for _, name := range []string{"curator-recipes", "curator-framework", "curator-client", "zookeeper", "zookeeper-jute", "slf4j-api", "slf4j-nop", "guava"} {
		file := filepath.Join("/usr/share/java", name+".jar")
		if _, err := os.Stat(file); err != nil {
			return "", err
		}
		all = append(all, file)
	}
	return strings.Join(all, ":"), nil
}

// curatorJava is the Java process, started with the first who dials.
var curatorJava struct {
	sync.Mutex
	started *javaProcess
}

// javaProcess carries out orders.
type javaProcess struct {
	mu      sync.Mutex
	in      io.Writer
	last    int
	waiting map[string]chan error
	gone    error
}

func startCurator() (*javaProcess, error) {
	curatorJava.Lock()
	defer curatorJava.Unlock()
	if curatorJava.started != nil {
		return curatorJava.started, nil
	}
	jars, err := curatorJars()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "primacy-bench-java-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	source := filepath.Join(dir, "CuratorPeer.java")
	if err := os.WriteFile(source, []byte(curatorSource), 0o644); err != nil {
		return nil, err
	}
	if text, err := exec.Command("javac", "-cp", jars, "-d", dir, source).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("javac: %w\n%s", err, text)
	}
	p := &javaProcess{waiting: map[string]chan error{}}
	cmd := exec.Command("java", "-Xmx256m", "-XX:+UseSerialGC", "-cp", jars+":"+dir, "CuratorPeer") // it ends with its standard input
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		p.in, err = cmd.StdinPipe()
	}
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return nil, err
	}
	helpers = append(helpers, cmd.Process.Pid)
	go p.listen(out)
	if err := p.order(context.Background(), "ready"); err != nil { // its classes are loaded: the folder may go
		return nil, err
	}
	curatorJava.started = p
	return p, nil
}

func (p *javaProcess) listen(out io.Reader) {
	for lines := bufio.NewScanner(out); lines.Scan(); {
		number, text, _ := strings.Cut(lines.Text(), " ")
		var err error
		if rest, failed := strings.CutPrefix(text, "error "); failed {
			err = errors.New(rest)
		}
		p.mu.Lock()
		answer := p.waiting[number]
		delete(p.waiting, number)
		p.mu.Unlock()
		if answer != nil {
			answer <- err
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.gone = errors.New("the Java process has ended")
	for _, answer := range p.waiting {
		answer <- p.gone
	}
}

// order has one order carried out. One that is given up goes on.
func (p *javaProcess) order(ctx context.Context, words ...string) error {
	answer := make(chan error, 1)
	p.mu.Lock()
	p.last++
	number := strconv.Itoa(p.last)
	p.waiting[number] = answer
	err := p.gone
	if err == nil {
		_, err = io.WriteString(p.in, number+" "+strings.Join(words, " ")+"\n")
	}
	p.mu.Unlock()
	if err != nil {
		return err
	}
	select {
	case err := <-answer:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// id returns a word that was never used before.
func (p *javaProcess) id() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last++
	return "n" + strconv.Itoa(p.last)
}

type curatorProcess struct {
	java    *javaProcess
	connect string
}

func dialCurator(_ context.Context, endpoints []string) (Process, error) {
	p, err := startCurator()
	if err != nil {
		return nil, err
	}
	return &curatorProcess{p, strings.Join(endpoints, ",")}, nil
}

func (p *curatorProcess) Close() {}

func (p *curatorProcess) MinTTL() time.Duration { return time.Second }

func (p *curatorProcess) Session(ctx context.Context, ttl time.Duration) (Session, error) {
	s := &curatorSession{java: p.java, id: p.java.id()}
	return s, p.java.order(ctx, "open", s.id, p.connect, strconv.FormatInt(ttl.Milliseconds(), 10))
}

type curatorSession struct {
	java *javaProcess
	id   string
}

func (s *curatorSession) Close(ctx context.Context) error { return s.java.order(ctx, "close", s.id) }

func (s *curatorSession) Revoke(context.Context) error {
	return errors.New("a session cannot be ended from outside")
}

func (s *curatorSession) Lock(name string, _ LockOptions) Lock {
	return &curatorLock{s, s.java.id(), "/curator/" + name}
}

func (s *curatorSession) Campaign(ctx context.Context, name string) (Held, error) {
	return s.Lock(name, LockOptions{}).Lock(ctx)
}

// curatorLock is also what is held.
type curatorLock struct {
	s        *curatorSession
	id, path string
}

func (l *curatorLock) Lock(ctx context.Context) (Held, error) {
	return l, l.s.java.order(ctx, "lock", l.s.id, l.id, l.path)
}

// Check says nothing: a holder hears of a loss only through a listener of its own, and then from
// another thread.
func (l *curatorLock) Check() error  { return nil }
func (l *curatorLock) Token() uint64 { return 0 }

func (l *curatorLock) Release(ctx context.Context) error {
	return l.s.java.order(ctx, "unlock", l.s.id, l.id)
}

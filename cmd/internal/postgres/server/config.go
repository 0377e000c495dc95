package server

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/primacy-go/primacy/cmd/internal/postgres/libpq"
)

// Config says which server, and what it is to be like.
type Config struct {
	Data        string // the data directory; may be missing or empty until it is made
	Bin         string // where postgres, pg_controldata and pg_waldump are
	Listen      string // host:port; the host as in listen_addresses
	SocketDir   string // of the Unix socket, where Superuser is let in
	HBA         string // empty: pg_hba.conf in Data
	Superuser   string
	Replication libpq.Replication
	Parameters  map[string]string // of PostgreSQL, those that are the user's to choose
	Output      *os.File          // what the postmaster prints; nil: our standard error
}

// Errors of [New], [Server.Examine] and what calls it, for errors.Is.
var (
	// ErrNoData: the data directory is missing or empty.
	ErrNoData = errors.New("there is no data directory yet")
	// ErrUnfit: the configuration, the binaries or the data directory cannot be used. A person must
	// act.
	ErrUnfit = errors.New("cannot run this server")
)

func unfit(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrUnfit, fmt.Errorf(format, args...))
}

// Version is a release of PostgreSQL, such as 15.18.
type Version struct{ Major, Minor int }

func (v Version) String() string { return fmt.Sprintf("%d.%d", v.Major, v.Minor) }

// ObeysSync says whether a server that was started as a primary waits for standbys from its first
// commit on. Before the minor releases of May 2025 it did not until its checkpointer ran.
func (v Version) ObeysSync() bool {
	first := map[int]int{13: 21, 14: 18, 15: 13, 16: 9, 17: 5}
	return v.Minor >= first[v.Major]
}

// The major releases for which the names of settings and of wait events were checked.
const oldest, newest = 13, 17

// Server is one PostgreSQL server. Its methods may be called from any goroutine; [Server.Start] and
// [Server.Stop] from one at a time.
type Server struct {
	cfg  Config
	host string // of Listen
	port string
	*directory
	*sessions

	noWait atomic.Bool // commits may be acknowledged without a standby

	mu       sync.Mutex
	starting bool
	process  Process  // nil: not started
	lock     *os.File // of the data directory, while a process of ours may run in it
}

// directory is a data directory and the binaries for it.
type directory struct {
	data, bin string
	version   Version
	runner    Runner
	files     sync.Mutex // held while a file of settings is replaced
	// What of the settings in memberNames was written last; guarded by files. It is replaced, never
	// changed.
	written map[string]string
}

// New checks the configuration and the binaries, and touches nothing. It returns [ErrUnfit] with
// what to do.
func New(cfg Config, runner Runner) (*Server, error) {
	if runtime.GOOS != "linux" {
		return nil, unfit("it needs Linux: what a server does is seen in /proc")
	}
	if os.Getuid() == 0 {
		return nil, unfit("PostgreSQL does not run as root: start primacy as the user that owns %s", cfg.Data)
	}
	if cfg.Output == nil {
		cfg.Output = os.Stderr
	}
	for _, path := range []setting{{"data", cfg.Data}, {"bin", cfg.Bin}, {"socket directory", cfg.SocketDir}} {
		if !filepath.IsAbs(path.value) {
			return nil, unfit("%s = %q: give an absolute path", path.name, path.value)
		}
	}
	host, port, err := net.SplitHostPort(cfg.Listen)
	if err != nil {
		return nil, unfit("listen = %q: give host:port", cfg.Listen)
	}
	if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
		return nil, unfit("listen = %q: the port is no number from 1 to 65535", cfg.Listen)
	}
	if socket := filepath.Join(cfg.SocketDir, ".s.PGSQL."+port); len(socket) > 107 || strings.Contains(socket, ",") {
		return nil, unfit("the path of the socket %s has more than 107 bytes or a comma: choose another directory",
			socket)
	}
	if cfg.Superuser == "" || cfg.Replication.User == "" {
		return nil, unfit("superuser and the replication user need a name")
	}
	if cfg.Parameters, err = Parameters(cfg.Parameters); err != nil {
		return nil, unfit("%w", err)
	}
	d := &directory{data: cfg.Data, bin: cfg.Bin, runner: runner}
	s := &Server{cfg: cfg, host: host, port: port, directory: d}
	if s.version, err = d.readVersion(); err != nil {
		return nil, err
	}
	for _, name := range []string{"pg_controldata", "pg_waldump"} {
		if _, err := exec.LookPath(s.program(name)); err != nil {
			return nil, unfit("%s is not in %s: install PostgreSQL's server package", name, cfg.Bin)
		}
	}
	s.sessions, err = newSessions(cfg.SocketDir, port, cfg.Superuser)
	return s, err
}

// Version returns the release of the binaries.
func (d *directory) Version() Version { return d.version }

func (d *directory) program(name string) string { return filepath.Join(d.bin, name) }

func (d *directory) path(elem ...string) string {
	return filepath.Join(append([]string{d.data}, elem...)...)
}

var versionText = regexp.MustCompile(`^postgres \(PostgreSQL\) (\d+)\.(\d+)`)

func (d *directory) readVersion() (Version, error) {
	postgres := d.program("postgres")
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	out, err := d.output(ctx, "postgres", "--version")
	if err != nil {
		return Version{}, unfit("%s: %w", postgres, err)
	}
	m := versionText.FindStringSubmatch(out)
	if m == nil {
		return Version{}, unfit("%s --version says %q: want a release of PostgreSQL %d to %d", postgres,
			strings.TrimSpace(out), oldest, newest)
	}
	major, _ := strconv.Atoi(m[1])
	minor, _ := strconv.Atoi(m[2])
	if major < oldest || major > newest {
		return Version{}, unfit("%s is PostgreSQL %d: primacy knows %d to %d", postgres, major, oldest, newest)
	}
	return Version{major, minor}, nil
}

// Examine checks that the data directory is ours and fits the binaries. It touches nothing. It
// returns [ErrNoData] where there is none, and [ErrUnfit] with what to do.
func (d *directory) Examine() error {
	dir := d.data
	info, err := os.Stat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%w: %s is missing", ErrNoData, dir)
	case err != nil:
		return unfit("data directory: %w", err)
	case !info.IsDir():
		return unfit("%s is no directory", dir)
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok && int(st.Uid) != os.Getuid() {
		return unfit("%s belongs to user %d and we are user %d: run primacy as its owner", dir, st.Uid, os.Getuid())
	}
	if info.Mode().Perm()&0o027 != 0 {
		return unfit("others can enter %s (mode %04o): chmod 0700 %[1]s", dir, info.Mode().Perm())
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return unfit("data directory: %w", err)
	}
	if len(entries) == 0 {
		return fmt.Errorf("%w: %s is empty", ErrNoData, dir)
	}
	text, err := os.ReadFile(d.path("PG_VERSION"))
	if errors.Is(err, fs.ErrNotExist) {
		return unfit("%s is not empty and has no PG_VERSION: it is no data directory", dir)
	} else if err != nil {
		return unfit("data directory: %w", err)
	}
	if v := strings.TrimSpace(string(text)); v != strconv.Itoa(d.version.Major) {
		return unfit("%s is of PostgreSQL %s and %s is of %d: set bin to the binaries of %[2]s", dir, v, d.bin,
			d.version.Major)
	}
	for _, name := range []string{"postgresql.conf", "global/pg_control"} {
		f, err := os.OpenFile(d.path(name), os.O_RDWR, 0)
		if err != nil {
			return unfit("data directory: %w", err)
		}
		f.Close()
	}
	return nil
}

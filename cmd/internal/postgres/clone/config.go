package clone

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/primacy-go/primacy/cmd/internal/postgres/libpq"
)

// Config says which directory, and how a new database system is made.
type Config struct {
	Data        string // the data directory; its parent exists
	Bin         string // where PostgreSQL's programs are
	Folder      string // what lies beside the data directory; empty: Data + ".primacy"
	Superuser   string
	Replication libpq.Replication
	Locale      string   // of a new database system; empty: C
	HBA         []string // lines of a new one's pg_hba.conf
}

var (
	// ErrUnfit says that the directory, or what it is to be made of, cannot be used. Nothing was
	// touched, and a person must act.
	ErrUnfit = errors.New("cannot use this data directory")
	// ErrHeld says that another process works on the directory.
	ErrHeld = errors.New("another process works on this data directory")
)

func unfit(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrUnfit, fmt.Errorf(format, args...))
}

// Dir is a data directory on which this process alone works. Its methods are called one at a time,
// but for [Dir.Peek].
type Dir struct {
	cfg   Config
	major int // of the programs
	lock  *os.File
}

// Open makes the folder beside the data directory if there is none, and takes its lock. It touches
// nothing else. Errors: [ErrUnfit], [ErrHeld].
func Open(cfg Config) (*Dir, error) {
	d, err := newDir(cfg)
	if err != nil {
		return nil, err
	}
	if err := os.Mkdir(d.cfg.Folder, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return nil, unfit("%w: make that folder and give it to the user that runs primacy", err)
	}
	f, err := os.OpenFile(d.folder("lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, unfit("%w", err)
	}
	// A program that we run holds the lock too, by the same open file: where this process is
	// killed, its successor waits for the programs that still write into the directory.
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		holder, _ := os.ReadFile(f.Name())
		f.Close()
		return nil, fmt.Errorf("%w: %s: primacy with process ID %s, or a program that it has started", ErrHeld,
			d.cfg.Data, strings.TrimSpace(string(holder)))
	}
	if err = f.Truncate(0); err == nil {
		_, err = f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	}
	if err != nil {
		f.Close()
		return nil, unfit("%w", err)
	}
	d.lock = f
	return d, nil
}

// Close lets others work on the directory.
func (d *Dir) Close() error { return d.lock.Close() }

func newDir(cfg Config) (*Dir, error) {
	if runtime.GOOS != "linux" {
		return nil, unfit("it needs Linux: what runs in a directory is seen in /proc")
	}
	if os.Getuid() == 0 {
		return nil, unfit("PostgreSQL does not run as root: start primacy as the user that owns %s", cfg.Data)
	}
	cfg.Data = filepath.Clean(cfg.Data)
	if cfg.Folder == "" {
		cfg.Folder = cfg.Data + ".primacy"
	}
	for _, path := range []struct{ key, value string }{{"data", cfg.Data}, {"bin", cfg.Bin}, {"folder", cfg.Folder}} {
		if !filepath.IsAbs(path.value) {
			return nil, unfit("%s = %q: give an absolute path", path.key, path.value)
		}
	}
	if cfg.Folder == cfg.Data || strings.HasPrefix(cfg.Folder, cfg.Data+"/") {
		return nil, unfit("folder = %q lies inside the data directory, where a clone would replace it", cfg.Folder)
	}
	if cfg.Superuser == "" || cfg.Replication.User == "" {
		return nil, unfit("superuser and the replication user need a name")
	}
	d := &Dir{cfg: cfg}
	var err error
	d.major, err = majorOf(d.program("postgres"))
	return d, err
}

func (d *Dir) folder(name string) string  { return filepath.Join(d.cfg.Folder, name) }
func (d *Dir) program(name string) string { return filepath.Join(d.cfg.Bin, name) }

func (d *Dir) path(elem ...string) string {
	return filepath.Join(append([]string{d.cfg.Data}, elem...)...)
}

var versionText = regexp.MustCompile(`^postgres \(PostgreSQL\) (\d+)\.`)

func majorOf(postgres string) (int, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, postgres, "--version").Output()
	if err != nil {
		return 0, unfit("%s --version: %w", postgres, err)
	}
	m := versionText.FindStringSubmatch(string(out))
	if m == nil {
		return 0, unfit("%s --version says %q", postgres, strings.TrimSpace(string(out)))
	}
	return strconv.Atoi(m[1])
}

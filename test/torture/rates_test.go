//go:build linux

package torture

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/primacy-go/primacy/internal/boottime"
	"github.com/primacy-go/primacy/internal/etcdtest"
)

// trueNow is the boot clock as the kernel has it, also in a worker whose own clocks run fast or
// slow: what candidates write down is compared with each other.
func trueNow() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		panic(err)
	}
	return time.Duration(ts.Nano())
}

// workerAt returns the program of the next worker of a line where TORTURE_RATE is set: the clocks
// of the first run fast by so many percent, those of the second slow. "" is this program.
func (s *torture) workerAt(l *line) string {
	s.Helper()
	if os.Getenv("TORTURE_RATE") == "" {
		return ""
	}
	percent := knob(s, "TORTURE_RATE", 10)
	switch l.rated++; l.rated {
	case 1:
		return builtAt(s, percent)
	case 2:
		return builtAt(s, -percent)
	}
	return ""
}

// builtAt builds this test with clocks that run faster by that many percent, or slower if negative,
// and looks that they do.
func builtAt(t testing.TB, percent int) string {
	t.Helper()
	dir := t.TempDir()
	source, err := filepath.Abs("../../internal/boottime/now_linux.go")
	if err != nil {
		t.Fatal(err)
	}
	flags, err := etcdtest.ClockOverlay(dir, percent, etcdtest.Edit{File: source,
		Old: "return time.Duration(ts.Nano())",
		New: fmt.Sprintf("n := ts.Nano(); return time.Duration(n + n/100*(%d))", percent)})
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(dir, "worker")
	build := exec.Command("go", append(append([]string{"test", "-c", "-vet=off"}, flags...), "-o", program, ".")...)
	if text, err := build.CombinedOutput(); err != nil {
		t.Fatalf("a worker whose clocks are off by %d %%: %v\n%s", percent, err, text)
	}
	look := exec.Command(program)
	look.Env = append(os.Environ(), helperEnv+"=clock")
	text, err := look.Output()
	var bootClock, golang, truly float64
	if _, err2 := fmt.Sscan(string(text), &bootClock, &golang, &truly); err != nil || err2 != nil {
		t.Fatalf("a worker says of its clocks: %q, %v, %v", text, err, err2)
	}
	for _, got := range []float64{bootClock, golang} {
		if want := truly * (100 + float64(percent)) / 100; got < want*0.99 || got > want*1.01 {
			t.Fatalf("a clock of a worker ran for %v in %v, want %v", time.Duration(got), time.Duration(truly),
				time.Duration(want))
		}
	}
	t.Logf("a worker's clocks run by %+d %%", percent)
	return program
}

// clockMain says for how long this program's clocks ran, and the kernel's, while it slept.
func clockMain() error {
	boot, began, truly := boottime.Now(), time.Now(), trueNow()
	time.Sleep(time.Second)
	_, err := fmt.Println((boottime.Now() - boot).Nanoseconds(), time.Since(began).Nanoseconds(),
		(trueNow() - truly).Nanoseconds())
	return err
}

// A worker whose clocks run fast or slow says so itself. Building it takes minutes, so that is
// asked for.
func TestTheClocksOfAWorkerRunAtTheirRate(t *testing.T) {
	if os.Getenv("TORTURE_RATE") == "" {
		t.Skip("builds this test anew, for minutes: TORTURE_RATE=10 asks for it")
	}
	builtAt(t, knob(t, "TORTURE_RATE", 10))
}

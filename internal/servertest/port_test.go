package servertest

import (
	"runtime"
	"strconv"
	"testing"
)

func TestAPortIsOneTestsAlone(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("ports are kept on Linux only")
	}
	var port int
	t.Run("has it", func(t *testing.T) {
		port, _ = strconv.Atoi(FreePort(t))
		if _, ok := reserve(port); ok {
			t.Errorf("port %d is given twice", port)
		}
	})
	done, ok := reserve(port)
	if !ok {
		t.Fatalf("port %d is kept by a test that has ended", port)
	}
	done()
}

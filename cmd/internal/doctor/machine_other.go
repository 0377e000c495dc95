//go:build !linux

package doctor

import (
	"github.com/primacy-go/primacy/driver"
	"github.com/primacy-go/primacy/internal/boottime"
)

func machine(float64) []Check {
	if boottime.Reliable {
		return []Check{{Topic: "boot clock", Level: driver.Fine, Found: "counts suspended time"}}
	}
	return []Check{{Topic: "boot clock", Level: driver.Failed,
		Found: "this system offers no clock that goes on in suspend", Advice: "use Linux or macOS"}}
}

func hypervisor(string) (name string, known bool) { return "", false }

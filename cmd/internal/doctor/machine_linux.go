package doctor

import (
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/primacy-go/primacy/driver"
)

// machine looks at this machine's own clock. It changes nothing.
func machine(drift float64) []Check {
	return []Check{bootClock(), discipline(drift), vm()}
}

func bootClock() Check {
	c := Check{Topic: "boot clock", Level: driver.Fine}
	var res unix.Timespec
	if err := unix.ClockGetres(unix.CLOCK_BOOTTIME, &res); err != nil {
		c.Level, c.Found, c.Advice = driver.Failed, "CLOCK_BOOTTIME: "+err.Error(), "use Linux 2.6.39 or newer"
		return c
	}
	source := word("/sys/devices/system/clocksource/clocksource0/current_clocksource")
	c.Found = fmt.Sprintf("CLOCK_BOOTTIME counts suspended time, steps of %v, clock source %s",
		time.Duration(res.Nano()), orUnknown(source))
	c.Figures = map[string]float64{"resolution_ns": float64(res.Nano())}
	if source == "jiffies" || res.Nano() > int64(time.Millisecond) {
		c.Level, c.Advice = driver.Warning, "a coarse clock: choose another clock source"
	}
	return c
}

// discipline says at which rate the kernel was told to run its clock, by NTP or chrony.
func discipline(drift float64) Check {
	c := Check{Topic: "clock discipline", Level: driver.Fine}
	var t unix.Timex // Modes 0: read only
	if _, err := unix.Adjtimex(&t); err != nil {
		c.Found = "not told here (" + err.Error() + ")"
		return c
	}
	ppm := float64(t.Freq)/65536 + (float64(t.Tick)/10000-1)*1e6
	kept := "synchronised by NTP"
	if t.Status&unix.STA_UNSYNC != 0 {
		kept = "not synchronised (no NTP); not needed: only its rate counts"
	}
	c.Found = fmt.Sprintf("%s, corrected by %+.1f ppm (%+.3f %%)", kept, ppm, ppm/1e4)
	c.Figures = map[string]float64{"correction_ppm": ppm}
	if max(ppm, -ppm)/1e6 > drift/4 {
		c.Level, c.Advice = driver.Warning, "the clock is being slewed fast: wait until it is right, or set it "+
			"in one step"
	}
	return c
}

// vm says whether this is a virtual machine, whose clocks a hypervisor may stop.
func vm() Check {
	c := Check{Topic: "virtual machine", Level: driver.Fine, Found: "none seen"}
	h, known := hypervisor("/")
	switch {
	case !known:
		c.Found = "not known: this machine does not tell; in one that is paused or restored clocks may stop, and " +
			"then only a fence protects"
		return c
	case h == "":
		return c
	}
	c.Found = h + "; if it is paused or restored, its clocks may stop, and then only a fence protects"
	if _, err := os.Stat("/dev/vmclock0"); err == nil {
		c.Found += "; /dev/vmclock0 reports such pauses"
	}
	return c
}

// guests are in the names that hypervisors give to the machines they make, as DMI shows them.
var guests = []string{"qemu", "kvm", "vmware", "virtualbox", "virtual machine", "virtualization", "xen", "bochs",
	"parallels", "google compute engine", "openstack", "bhyve"}

// hypervisor names what this virtual machine runs on, "" where it is none, and says whether that is
// known. Only x86 has a flag for it, and shows its absence, too.
func hypervisor(root string) (name string, known bool) {
	name = strings.TrimSpace(word(root+"sys/class/dmi/id/sys_vendor") + " " +
		word(root+"sys/class/dmi/id/product_name"))
	cpu := word(root + "proc/cpuinfo")
	tells := strings.Contains(cpu, "\nflags")
	seen := tells && strings.Contains(cpu, " hypervisor")
	for _, guest := range guests {
		seen = seen || strings.Contains(strings.ToLower(name), guest)
	}
	if strings.HasPrefix(name, "Amazon EC2") && !strings.HasSuffix(name, ".metal") {
		seen = true
	}
	for _, path := range []string{"proc/device-tree/hypervisor/compatible", "sys/hypervisor/type"} {
		if of := strings.Trim(word(root+path), "\x00"); of != "" && !seen {
			name, seen = strings.TrimSpace(name+" "+of), true
		}
	}
	switch {
	case !seen:
		return "", tells
	case name == "":
		return "yes", true
	}
	return "yes, " + name, true
}

// word reads a file of one line, "" if there is none.
func word(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

func orUnknown(s string) string {
	if s == "" {
		return "unknown"
	}
	return s
}

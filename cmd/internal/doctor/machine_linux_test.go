package doctor

import (
	"os"
	"path/filepath"
	"testing"
)

// Only x86 shows in its processor's flags whether it is a virtual machine. Where nothing tells,
// that none is seen would be taken for none.
func TestAHypervisorIsSeenOrNotKnown(t *testing.T) {
	const (
		vendor, product = "sys/class/dmi/id/sys_vendor", "sys/class/dmi/id/product_name"
		cpu             = "proc/cpuinfo"
		x86, guest      = "processor\t: 0\nflags\t\t: fpu vme", "processor\t: 0\nflags\t\t: fpu hypervisor vme"
		arm             = "processor\t: 0\nBogoMIPS\t: 50.00\nFeatures\t: fp asimd"
	)
	for _, c := range []struct {
		files map[string]string
		want  string
		known bool
	}{
		{map[string]string{cpu: x86, vendor: "Dell Inc.", product: "PowerEdge"}, "", true},
		{map[string]string{cpu: guest}, "yes", true},
		{map[string]string{cpu: guest, vendor: "QEMU\n", product: "Standard PC\n"}, "yes, QEMU Standard PC", true},
		{map[string]string{cpu: x86, "sys/hypervisor/type": "xen\n"}, "yes, xen", true},
		{map[string]string{cpu: arm}, "", false},
		{map[string]string{cpu: arm, vendor: "QEMU", product: "KVM Virtual Machine"},
			"yes, QEMU KVM Virtual Machine", true},
		{map[string]string{cpu: arm, vendor: "Amazon EC2", product: "t4g.small"}, "yes, Amazon EC2 t4g.small", true},
		{map[string]string{cpu: arm, vendor: "Amazon EC2", product: "a1.metal"}, "", false},
		{map[string]string{cpu: arm, "proc/device-tree/hypervisor/compatible": "linux,kvm\x00"},
			"yes, linux,kvm", true},
		{nil, "", false},
	} {
		root := t.TempDir() + "/"
		for path, text := range c.files {
			if err := os.MkdirAll(filepath.Dir(root+path), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(root+path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if got, known := hypervisor(root); got != c.want || known != c.known {
			t.Errorf("%q: %q, known %v; want %q, %v", c.files, got, known, c.want, c.known)
		}
	}
}

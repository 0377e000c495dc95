package etcdwire

import (
	"strconv"
	"strings"
)

// fixed holds, for each minor version of etcd 3, the first patch whose linearizable reads are
// never stale.
var fixed = map[int]int{4: 42, 5: 28, 6: 9}

// deletesTold holds the first patches whose watches tell of every deletion, whatever is compacted.
var deletesTold = map[int]int{4: 36, 5: 18, 6: 0}

// Stale reports whether linearizable reads of a server can show old state after its process was
// paused (etcd issue 20418).
func Stale(version string) bool { return older(version, fixed) }

// Warning says what cannot be promised with servers of a version, or is empty.
func Warning(version string) string {
	if !Stale(version) {
		return ""
	}
	why := "etcd " + version + " can show old state after a pause of a server process (etcd issue 20418), " +
		"and then two may lead: use 3.4.42, 3.5.28, 3.6.9, 3.7.0 or newer"
	if older(version, deletesTold) {
		why += "; it can also keep the end of a claim from those who watch it when it compacts its history " +
			"(issues 18089, 19179), who then hear of it some seconds late"
	}
	return why
}

// older reports whether a version is before the patch of its minor version in right; 3.7 and later
// are not. A version that cannot be read counts as old.
func older(version string, right map[int]int) bool {
	core, _, _ := strings.Cut(version, "-")
	part := strings.Split(core, ".")
	if len(part) != 3 {
		return true
	}
	major, err1 := strconv.Atoi(part[0])
	minor, err2 := strconv.Atoi(part[1])
	patch, err3 := strconv.Atoi(part[2])
	if err1 != nil || err2 != nil || err3 != nil || major < 3 || major == 3 && minor < 4 {
		return true
	}
	return major == 3 && minor < 7 && patch < right[minor]
}

package k8sstore

import (
	"cmp"
	"errors"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/primacy-go/primacy/registerstore"
)

// What our Leases have beside their fields.
const (
	annotationValue = "primacy-go.github.io/value" // the value: all that counts
	annotationToken = "primacy-go.github.io/token" // of a name: the token of who leads, or led last
	annotationLease = "primacy-go.github.io/lease" // of a name: the Lease that its leader renews
	labelStore      = "primacy-go.github.io/store" // the prefix
	labelKind       = "primacy-go.github.io/kind"  // line, lease or journal
)

// largest is how many bytes the annotations of one object may have, keys and values.
const largest = 256 << 10

// object is a Lease.
type object struct {
	APIVersion string   `json:"apiVersion"`
	Kind       string   `json:"kind"`
	Metadata   metadata `json:"metadata"`
	Spec       spec     `json:"spec"`
}

type metadata struct {
	Name            string            `json:"name"`
	UID             string            `json:"uid,omitempty"`
	ResourceVersion string            `json:"resourceVersion,omitempty"`
	Labels          map[string]string `json:"labels,omitempty"`
	Annotations     map[string]string `json:"annotations,omitempty"`
}

// spec is what is shown to people, and to nobody else.
type spec struct {
	HolderIdentity       string `json:"holderIdentity,omitempty"`
	LeaseDurationSeconds int32  `json:"leaseDurationSeconds,omitempty"`
	AcquireTime          string `json:"acquireTime,omitempty"`
	RenewTime            string `json:"renewTime,omitempty"`
	LeaseTransitions     int32  `json:"leaseTransitions"`
}

// micros is how Kubernetes writes such times.
const micros = "2006-01-02T15:04:05.000000Z07:00"

func (o object) value() []byte { return []byte(o.Metadata.Annotations[annotationValue]) }

func (o object) size() (n int) {
	for k, v := range o.Metadata.Annotations {
		n += len(k) + len(v)
	}
	return n
}

// version is a version of a Lease. Beside what makes it unique it has what the next write shows to
// people: the register is not told what was there before.
type version struct {
	uid, resource string
	acquired      string
	transitions   int32
	token         string
}

// version returns the version of a Lease as a register has it.
func (o object) version() string {
	m, s := o.Metadata, o.Spec
	return strings.Join([]string{m.UID, m.ResourceVersion, s.AcquireTime, strconv.Itoa(int(s.LeaseTransitions)),
		m.Annotations[annotationToken]}, "|")
}

func parseVersion(text string) (v version, err error) {
	if text == "" {
		return v, nil
	}
	part := strings.SplitN(text, "|", 5)
	if len(part) != 5 || part[0] == "" || part[1] == "" {
		return v, errors.New("that is no version of a Lease: " + strconv.Quote(text))
	}
	n, _ := strconv.ParseInt(part[3], 10, 32)
	return version{part[0], part[1], part[2], int32(n), part[4]}, nil
}

// newObject is the Lease that holds a value, after that version.
func (a *api) newObject(key string, value []byte, before version) object {
	kind, _, _ := strings.Cut(key, ".")
	o := object{APIVersion: "coordination.k8s.io/v1", Kind: "Lease", Metadata: metadata{
		Name: a.objectName(key), UID: before.uid, ResourceVersion: before.resource,
		Labels:      map[string]string{labelStore: a.prefix, labelKind: kind},
		Annotations: map[string]string{annotationValue: string(value)},
	}}
	now := time.Now().UTC().Format(micros)
	d, err := registerstore.Describe(key, value)
	switch {
	case err != nil: // it is shown to people only
	case d.Kind == "lease":
		o.Spec = spec{HolderIdentity: d.Owner, AcquireTime: cmp.Or(before.acquired, now), RenewTime: now,
			LeaseDurationSeconds: int32(min(math.Ceil(d.TTL.Seconds()), math.MaxInt32))}
	case d.Kind == "line":
		o.Spec.LeaseTransitions = before.transitions
		if before.token != "" {
			o.Metadata.Annotations[annotationToken] = before.token
		}
		if h := d.Line.Holder; h != nil {
			token := strconv.FormatUint(h.Token, 10)
			o.Spec.HolderIdentity, o.Spec.AcquireTime = h.Owner, before.acquired
			if token != before.token {
				o.Spec.AcquireTime = now
				if before.token != "" {
					o.Spec.LeaseTransitions = max(before.transitions, before.transitions+1)
				}
			}
			o.Metadata.Annotations[annotationToken] = token
			o.Metadata.Annotations[annotationLease] = a.objectName("lease." + h.Lease)
		}
	}
	return o
}

package k8sstore

import (
	"context"
	"net/http"
	"strings"

	"github.com/primacy-go/primacy/registerstore"
)

var (
	_ registerstore.Register = (*api)(nil)
	_ registerstore.Watcher  = (*api)(nil)
)

// objectName is the name of the Lease for a key, KIND.PART: a part of a name in Kubernetes begins
// with a letter or digit, so a "." stands only behind the prefix, which has none.
func (a *api) objectName(key string) string {
	return a.prefix + "." + strings.Replace(key, ".", "-", 1)
}

// key is the key whose Lease has that name.
func (a *api) key(name string) (string, bool) {
	rest, ok := strings.CutPrefix(name, a.prefix+".")
	return strings.Replace(rest, "-", ".", 1), ok && strings.Contains(rest, "-")
}

// Get implements [registerstore.Register]. It names no resourceVersion, not even 0: then the server
// asks etcd for the latest, and does not answer from its cache.
func (a *api) Get(ctx context.Context, key string) ([]byte, string, error) {
	c := a.leases("get", http.MethodGet, a.objectName(key))
	var o object
	code, err := a.do(ctx, c, &o)
	if err != nil || code == http.StatusNotFound {
		return nil, "", err
	}
	if err := a.check(c, o); err != nil {
		return nil, "", err
	}
	return o.value(), o.version(), nil
}

// check says whether an object is the Lease that was asked for.
func (a *api) check(c call, o object) error {
	m := o.Metadata
	if o.Kind != "Lease" || m.UID == "" || m.ResourceVersion == "" || c.name != "" && m.Name != c.name {
		return a.errorf(c, "the answer is no Lease of that name")
	}
	return nil
}

// Put implements [registerstore.Register].
func (a *api) Put(ctx context.Context, key string, value []byte, version string) (string, bool, error) {
	c := a.leases("update", http.MethodPut, a.objectName(key))
	if version == "" {
		c = a.leases("create", http.MethodPost, "")
	}
	c.query.Set("fieldManager", "primacy")
	before, err := parseVersion(version)
	if err != nil {
		return "", false, final(a.errorf(c, "%w", err))
	}
	to := a.newObject(key, value, before)
	if n := to.size(); n > largest {
		return "", false, final(a.errorf(c, "%s would have %d bytes, and a Lease holds %d", key, n, largest))
	}
	c.body = to
	var o object
	code, err := a.do(ctx, c, &o)
	if err != nil || code >= 300 {
		return "", false, err // 409 and 404: it has another version
	}
	if err := a.check(c, o); err != nil {
		return "", false, err
	}
	return o.version(), true, nil
}

// Delete implements [registerstore.Register].
func (a *api) Delete(ctx context.Context, key, version string) error {
	c := a.leases("delete", http.MethodDelete, a.objectName(key))
	v, err := parseVersion(version)
	if err != nil {
		return final(a.errorf(c, "%w", err))
	}
	c.body = map[string]any{"apiVersion": "v1", "kind": "DeleteOptions",
		"preconditions": map[string]string{"uid": v.uid, "resourceVersion": v.resource}}
	_, err = a.do(ctx, c, nil)
	return err
}

// page is how many Leases one request lists.
const page = "500"

// List implements [registerstore.Register].
func (a *api) List(ctx context.Context, prefix string) (keys []string, err error) {
	kind, _, _ := strings.Cut(prefix, ".")
	for tries := 0; ; tries++ {
		keys, again, err := a.list(ctx, kind, prefix)
		if err != nil || !again || tries == 3 {
			return keys, err
		}
	}
}

// list lists from the beginning. It asks to be called again where the server has forgotten, from
// one page to the next, what the list began with.
func (a *api) list(ctx context.Context, kind, prefix string) (keys []string, again bool, err error) {
	c := a.leases("list", http.MethodGet, "")
	c.query.Set("labelSelector", labelStore+"="+a.prefix+","+labelKind+"="+kind)
	c.query.Set("limit", page)
	for {
		var l struct {
			Metadata struct{ Continue string }
			Items    []struct{ Metadata metadata }
		}
		code, err := a.do(ctx, c, &l)
		if err != nil || code == http.StatusGone {
			return keys, err == nil, err
		}
		for _, o := range l.Items {
			if key, ok := a.key(o.Metadata.Name); ok && strings.HasPrefix(key, prefix) {
				keys = append(keys, key)
			}
		}
		if l.Metadata.Continue == "" {
			return keys, false, nil
		}
		c.query.Set("continue", l.Metadata.Continue)
	}
}

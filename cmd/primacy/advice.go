package main

import (
	"errors"
	"fmt"
	"net/url"
	"strings"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/primacy-go/primacy"
)

// advice is what to do about a store that refuses us, where its own words do not say it; "" where
// they do.
func advice(err error, store string) string {
	says := func(text string) bool { return strings.Contains(err.Error(), text) }
	scheme, _, _ := strings.Cut(store, "://")
	switch {
	case !errors.Is(err, primacy.ErrRefused):
		return ""
	case errors.Is(err, rpctypes.ErrUserEmpty):
		return fmt.Sprintf("; this etcd wants a user: give --store %s://USER:PASSWORD@HOST", scheme)
	case errors.Is(err, rpctypes.ErrPermissionDenied):
		return fmt.Sprintf("; grant the user's role all keys that begin with %[1]s: "+
			"etcdctl role grant-permission ROLE readwrite --prefix=true %[1]s", etcdPrefix(store))
	case says("NOAUTH"):
		return fmt.Sprintf("; give the password: --store %s://:PASSWORD@HOST, or the option password-file=FILE", scheme)
	case says("NOPERM"):
		return "; docs/redis.md and docs/redlock.md have the rights that the user needs"
	case strings.HasPrefix(scheme, "postgres") && says("permission denied") && !says("primacy schema"):
		return "; 'primacy schema --store postgres://USER@HOST/DATABASE' prints the SQL that gives USER the rights"
	}
	return ""
}

// etcdPrefix is what all keys of an etcd store begin with.
func etcdPrefix(store string) string {
	_, rest, _ := strings.Cut(store, "://")
	rest, _, _ = strings.Cut(rest, "?")
	if _, path, _ := strings.Cut(rest, "/"); strings.Trim(path, "/") != "" {
		if plain, err := url.PathUnescape(strings.Trim(path, "/")); err == nil {
			return printable(plain) + "/"
		}
	}
	return "primacy/"
}

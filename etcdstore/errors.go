package etcdstore

import (
	"errors"
	"fmt"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/primacy-go/primacy/driver"
)

// refused is the error for what etcd would do but we do not.
func refused(verb, why string) error {
	return fmt.Errorf("etcd: %s: %w: %s", verb, driver.ErrRefused, why)
}

func isGone(err error) bool { return errors.Is(err, driver.ErrGone) }

// forbidden reports whether the user has no right to a key. Other keys may still be open to it.
func forbidden(err error) bool { return errors.Is(err, rpctypes.ErrPermissionDenied) }

func verb(what, name string) string { return fmt.Sprintf("%s %q", what, name) }

func taken(what string) error { return fmt.Errorf("etcd: %s: %w", what, driver.ErrTaken) }

func placeGone(verb string, name string) error {
	return fmt.Errorf("etcd: %s %q: the claim: %w", verb, name, driver.ErrGone)
}

// notGone turns ErrGone into an unknown outcome, where the caller would take it for the end of its
// own lease or claim: etcd has said it of another lease, such as that of journal records.
func notGone(err error) error {
	if isGone(err) {
		return fmt.Errorf("the lease of what was to be written has ended: %s", err)
	}
	return err
}

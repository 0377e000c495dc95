package etcdwire

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/primacy-go/primacy/driver"
)

// ErrTLS says that no member's certificate, or ours, was accepted.
var ErrTLS = errors.New("TLS")

// Final returns [driver.ErrGone] or [driver.ErrRefused] where etcd's answer is final, and nil where
// the outcome is unknown.
func Final(err error) error {
	known := rpctypes.Error(err)
	for _, e := range []error{rpctypes.ErrAuthFailed, rpctypes.ErrPermissionDenied, rpctypes.ErrUserEmpty,
		rpctypes.ErrUserNotFound,
		rpctypes.ErrRequestTooLarge, rpctypes.ErrLeaseTTLTooLarge} {
		if errors.Is(known, e) {
			return driver.ErrRefused
		}
	}
	if errors.Is(known, rpctypes.ErrLeaseNotFound) {
		return driver.ErrGone
	}
	st := status.Convert(err)
	// gRPC itself refuses a request that is far too large, etcd one that is just too large.
	if st.Code() == codes.PermissionDenied || st.Code() == codes.ResourceExhausted && strings.Contains(st.Message(),
		"larger than max") {
		return driver.ErrRefused
	}
	return nil
}

// Definite reports whether err proves that etcd has not done and will not do what was asked. After
// any other error a frozen member may carry it out much later. ErrNoSpace proves nothing: a member
// that finds etcd full while it applies a Txn carries the Txn out and then answers ErrNoSpace.
func Definite(err error) bool {
	if Final(err) != nil {
		return true
	}
	known := rpctypes.Error(err)
	return errors.Is(known, rpctypes.ErrInvalidAuthToken) || errors.Is(known, rpctypes.ErrAuthOldRevision) ||
		errors.Is(known, rpctypes.ErrTooManyRequests) || errors.Is(known, rpctypes.ErrTooManyOps)
}

// NoSpace reports whether etcd is full: it takes no put, but it does take what only deletes.
func NoSpace(err error) bool { return errors.Is(rpctypes.Error(err), rpctypes.ErrNoSpace) }

// elsewhere reports whether another member may do better.
func elsewhere(err error) bool {
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled, codes.Internal, codes.Unknown:
		return true
	}
	return strings.Contains(Text(err), "not supported for learner")
}

// TLSReason returns why the TLS handshake failed, "" where it was not TLS. gRPC hides it in the
// text of an Unavailable; an expired certificate would be tried again for ever and never named.
func TLSReason(err error) string {
	st := status.Convert(err)
	if st.Code() != codes.Unavailable {
		return ""
	}
	msg := plainText(st.Message())
	for _, mark := range []string{"x509: ", "tls: "} {
		// x509 first, for it stands further in and tells more: "tls: failed to verify certificate:
		// x509: certificate has expired".
		if i := strings.Index(msg, mark); i >= 0 && !strings.Contains(msg, "closed connection") {
			return strings.Trim(msg[i:], `" `)
		}
	}
	return ""
}

// Wrap returns one line for people: which member, which verb, what is wrong. Ctx is the caller's.
// Wrap returns a context error only where ctx has ended. The end of one attempt's own limit is no
// context error of the caller.
func Wrap(ctx context.Context, endpoint, verb string, err error) error {
	if final := Final(err); final != nil {
		text := fmt.Sprintf("etcd %s: %s: %s: %s", endpoint, verb, final, Text(err))
		return &worded{text, []error{final, rpctypes.Error(err)}}
	}
	if ctx.Err() != nil {
		return fmt.Errorf("etcd %s: %s: %w", endpoint, verb, ctx.Err())
	}
	if reason := TLSReason(err); reason != "" {
		return fmt.Errorf("etcd %s: %s: TLS: %s", endpoint, verb, reason)
	}
	if c := status.Code(err); c == codes.DeadlineExceeded || errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("etcd %s: %s: no answer in time", endpoint, verb)
	}
	return &worded{fmt.Sprintf("etcd %s: %s: %s", endpoint, verb, Text(err)), []error{rpctypes.Error(err)}}
}

// worded is an error with our words, through which errors.Is still finds the driver's and etcd's.
type worded struct {
	text string
	errs []error
}

func (w *worded) Error() string   { return w.text }
func (w *worded) Unwrap() []error { return w.errs }

// Text returns etcd's own words without what gRPC puts before and around them.
func Text(err error) string {
	var known rpctypes.EtcdError
	if errors.As(err, &known) {
		return known.Error()
	}
	if st, ok := status.FromError(err); ok {
		return plainText(st.Message())
	}
	return plainText(err.Error())
}

// plainText returns what the network said without gRPC's prefixes and quotes around it. It also
// takes off the backslashes that gRPC puts before quotes. A text with a line break keeps its
// backslashes, or it would be two lines.
func plainText(s string) string {
	quoted, framed := strings.CutPrefix(s, "connection error: desc = ")
	if framed {
		s = strings.TrimSuffix(strings.TrimPrefix(quoted, `"`), `"`)
		if plain, err := strconv.Unquote(quoted); err == nil && !strings.ContainsFunc(plain, unicode.IsControl) {
			s = plain
		}
	}
	return strings.TrimPrefix(s, "transport: Error while dialing: ")
}

// TooMany reports whether etcd allows fewer operations in one Txn.
func TooMany(err error) bool { return errors.Is(rpctypes.Error(err), rpctypes.ErrTooManyOps) }

package etcdwire

import (
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// What gRPC quotes is shown as it was, in one line.
func TestTextHasNoFrame(t *testing.T) {
	const frame = "connection error: desc = "
	for in, want := range map[string]string{
		frame + `"transport: Error while dialing: dial tcp 127.0.0.1:1: refused"`: `dial tcp 127.0.0.1:1: refused`,
		frame + `"transport: it said \"no\", twice"`:                              `transport: it said "no", twice`,
		frame + `"transport: two\nlines"`:                                         `transport: two\nlines`,
		frame + `"cut off \`:                                                      `cut off \`,
		`no frame "at all"`:                                                       `no frame "at all"`,
	} {
		if got := Text(status.Error(codes.Unavailable, in)); got != want {
			t.Errorf("Text(%s) = %s, want %s", in, got, want)
		}
	}
	unknown := frame + `"transport: authentication handshake failed: tls: failed to verify certificate: ` +
		`x509: certificate signed by unknown authority (candidate \"ca\")"`
	if got, want := TLSReason(status.Error(codes.Unavailable, unknown)),
		`x509: certificate signed by unknown authority (candidate "ca")`; got != want {
		t.Errorf("TLSReason = %s, want %s", got, want)
	}
}

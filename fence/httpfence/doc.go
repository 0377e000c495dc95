// Package httpfence fences an HTTP server: a client that sends the token with every request, and a
// middleware that refuses a smaller one.
//
//	client := httpfence.Client(term)                                   // the leader
//	err := httpfence.Raise(ctx, client, url)                           // once a term, before its first read
//	resp, err := client.Post(url, "text/plain", body)                  // err is a *fence.StaleError if a newer leader has been here
//
//	memory, err := httpfence.Dir("/var/lib/ledger/fence")              // the server
//	ledger := &httpfence.Fence{Name: "ledger", Memory: memory}
//	http.Handle("/accounts/", ledger.Wrap(accounts))                   // one fence for all that belongs together
//	http.Handle("/orders/", ledger.Wrap(orders))
//	…
//	server.Shutdown(ctx)
//	memory.Close()                                                     // after Shutdown, never before
//
// # On the wire
//
//	Primacy-Name: ledger           the election's name; bytes that a header cannot hold are written %XX, and so is %
//	Primacy-Token: 42              its token, decimal
//	Primacy-Origin: etcd/cdf8181e  where the token comes from; may be missing
//	Primacy-Fence: raise           with OPTIONS: only raise the fence; the answer is 204 with Primacy-Fence: raised
//
// Refusals are application/problem+json (RFC 9457) with one of these types: 412
// urn:primacy:stale-token and 412 urn:primacy:other-origin (with token and largest, as strings; the
// headers Primacy-Problem, Primacy-Largest and Primacy-Known say the same), 428
// urn:primacy:token-required, 400 urn:primacy:bad-token, 503 urn:primacy:not-ready.
//
// # What it guarantees, and what it cannot
//
// The largest token is on the disk before the handler runs. Handlers under one token run side by
// side. A larger token is admitted at once, which refuses every smaller one that comes after; its
// handler runs only when those under smaller tokens have returned. They are told to: their contexts
// end with a *fence.StaleError, and reading a body that a stopped client does not finish fails. So
// what handlers do before they return is in the order of tokens.
//
// What a handler leaves behind in goroutines, queues or other services is not held: those need a
// fence of their own, for which the handler finds the stamp in its context ([StampOf]). A handler
// that ignores its context and never returns keeps the next leader out (503 when the client gives
// up). Put http.TimeoutHandler around the wrapped handler, never inside: it answers while its
// handler still runs. Several server processes need one memory and one gate: put the token into
// their common database instead (package sqlfence). GET, HEAD, OPTIONS and TRACE without a token
// pass, since readers are no leaders; a handler that writes on GET is not fenced. Whoever can reach
// the server can send any token: authenticate clients as ever. More: docs/fencing.md.
package httpfence

// Package page is what an operator sees in a browser: all elections and locks, the worst first,
// what each election's history says, cron's jobs, members and the store; and, where that is
// allowed, what he can ask leaders for.
//
// Every view is made on the server by html/template and reads without script. A script keeps it up
// to date: it opens one stream a tab (stream.go), and gets the parts of the view that have changed.
// One picture of the store, which top keeps, feeds all tabs; nobody is asked while none is open.
//
// A view is a function from a query to a [content]: what HTML, the stream and JSON are made of. To
// add one, write the function and its template, and give it a row in views.
package page

package primacy

// NewSessionAt is NewSession on a clock of the test's own, for tests of packages that show what a
// session does.
var NewSessionAt = newSession

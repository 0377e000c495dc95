package agent

import (
	_ "embed"
	"net/http"
)

// document describes the API as OpenAPI 3.1. TestDocument holds it to the routes and to real
// answers.
//
//go:embed openapi.json
var document []byte

// openAPI answers GET /openapi.json.
func openAPI(w http.ResponseWriter, _ *http.Request, _ string) {
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(document)
}

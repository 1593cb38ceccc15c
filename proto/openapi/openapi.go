// Package openapi holds the REST contract as an OpenAPI 3.1 document.
// Operations that do not work yet carry the extension StatusExtension.
package openapi

import _ "embed"

// StatusExtension is set to StatusPlanned on operations that belong to the
// contract and do not work yet.
const (
	StatusExtension = "x-waitlist-status"
	StatusPlanned   = "planned"
)

// AccessExtension says what an operation with credentials needs besides them;
// the document's description explains it.
const AccessExtension = "x-waitlist-access"

//go:embed openapi.yaml
var document []byte

// Document returns the document, in YAML.
func Document() []byte { return document }

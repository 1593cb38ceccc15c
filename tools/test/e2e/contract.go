package e2e

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"sort"
	"strconv"
	"strings"
	"sync"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/gorillamux"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"gopkg.in/yaml.v3"

	"waitlist.internal/proto/openapi"
)

// basePath is the version segment that starts every path of the contract.
const basePath = "/v1"

// Contract checks exchanges against the OpenAPI document. It is safe for concurrent use.
type Contract struct {
	doc        *openapi3.T
	router     routers.Router
	operations []Operation
	schemas    schemas
}

// Operation is an operation of the document.
type Operation struct {
	ID     string
	Method string
	// Path is the path template without the version segment.
	Path string
	// Planned means that the operation is not implemented yet.
	Planned bool
	// Schemes names the accepted security schemes, any one of which is enough; empty: no credentials needed.
	Schemes []string
	// Access is what the operation requires besides credentials; the zero value if Schemes is empty.
	Access Access
	// Parameters names the path, query and header parameters.
	Parameters []string
	// HasBody is set if the operation takes a request body.
	HasBody bool
	// Outcomes lists the documented answers, such as "201" or "400 VALIDATION_ERROR".
	Outcomes []string
}

// Access is what an operation requires besides credentials, as stated by openapi.AccessExtension in the document.
type Access struct {
	// Role is the lowest role: viewer, admin or owner.
	Role string `json:"role"`
	// Gate is the subscription gate: subscription, any or none.
	Gate string `json:"gate"`
	// Tier is the lowest tier; empty: any.
	Tier string `json:"tier"`
	// Verified requires a verified address if the deployment does.
	Verified bool `json:"verified"`
}

// LoadContract reads and validates the document.
func LoadContract() (*Contract, error) {
	strict, err := StrictDocument()
	if err != nil {
		return nil, err
	}
	doc, err := openapi3.NewLoader().LoadFromData(strict)
	if err != nil {
		return nil, fmt.Errorf("load the OpenAPI document: %w", err)
	}
	if err := doc.Validate(context.Background()); err != nil {
		return nil, fmt.Errorf("validate the OpenAPI document: %w", err)
	}
	// No host, so that one contract fits servers on any port.
	doc.Servers = openapi3.Servers{{URL: basePath}}
	router, err := gorillamux.NewRouter(doc)
	if err != nil {
		return nil, fmt.Errorf("route the OpenAPI document: %w", err)
	}
	c := &Contract{doc: doc, router: router}
	if c.schemas, err = newSchemas(strict); err != nil {
		return nil, err
	}
	if c.operations, err = operations(doc); err != nil {
		return nil, err
	}
	return c, nil
}

// Operations lists all operations, sorted by path and method.
func (c *Contract) Operations() []Operation { return slices.Clone(c.operations) }

func operations(doc *openapi3.T) ([]Operation, error) {
	var out []Operation
	for path, item := range doc.Paths.Map() {
		for method, op := range item.Operations() {
			o := Operation{ID: op.OperationID, Method: method, Path: path, HasBody: op.RequestBody != nil}
			o.Planned = op.Extensions[openapi.StatusExtension] == openapi.StatusPlanned
			var err error
			if o.Access, err = readAccess(op.Extensions[openapi.AccessExtension]); err != nil {
				return nil, fmt.Errorf("%s: %s: %w", op.OperationID, openapi.AccessExtension, err)
			}
			for _, p := range slices.Concat(item.Parameters, op.Parameters) {
				o.Parameters = append(o.Parameters, p.Value.Name)
			}
			security := doc.Security
			if op.Security != nil {
				security = *op.Security
			}
			for _, requirement := range security {
				if len(requirement) == 0 { // credentials are optional
					o.Schemes = nil
					break
				}
				for scheme := range requirement {
					o.Schemes = append(o.Schemes, scheme)
				}
			}
			for status, response := range op.Responses.Map() {
				codes := errorCodes(response.Value)
				if len(codes) == 0 {
					o.Outcomes = append(o.Outcomes, status)
				}
				for _, code := range codes {
					o.Outcomes = append(o.Outcomes, status+" "+code)
				}
			}
			slices.Sort(o.Schemes)
			slices.Sort(o.Outcomes)
			out = append(out, o)
		}
	}
	sort.Slice(out, func(i, j int) bool {
		return out[i].Path+" "+out[i].Method < out[j].Path+" "+out[j].Method
	})
	return out, nil
}

// readAccess decodes the extension strictly; nil gives the zero Access.
func readAccess(extension any) (Access, error) {
	if extension == nil {
		return Access{}, nil
	}
	raw, err := json.Marshal(extension)
	if err != nil {
		return Access{}, err
	}
	var a Access
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	err = d.Decode(&a)
	return a, err
}

// errorCodes returns the codes that an error response may carry, or none for a success.
func errorCodes(r *openapi3.Response) []string {
	media := r.Content.Get("application/json")
	if media == nil || media.Schema == nil || media.Schema.Value == nil {
		return nil
	}
	var codes []string
	for _, part := range media.Schema.Value.AllOf {
		if p := part.Value.Properties["error_code"]; p != nil && part.Ref == "" {
			for _, code := range p.Value.Enum {
				codes = append(codes, fmt.Sprint(code))
			}
		}
	}
	return codes
}

// An Exchange is a request and its answer.
type Exchange struct {
	Request      *http.Request
	RequestBody  []byte
	Status       int
	Header       http.Header
	ResponseBody []byte
	// InvalidRequest allows the request to violate the contract. The answer never may.
	InvalidRequest bool
}

// sentence matches every message to a person.
var sentence = regexp.MustCompile(`^[A-Z](?s:.)*[.?!]$`)

// Check returns the operation of x ("" if it has none) and the outcome as in Operation.Outcomes. The error says how x
// violates the contract.
func (c *Contract) Check(ctx context.Context, x Exchange) (operation, outcome string, err error) {
	outcome = strconv.Itoa(x.Status)
	var body struct {
		Error     string `json:"error"`
		ErrorCode string `json:"error_code"`
		RequestID string `json:"request_id"`
		Errors    []struct {
			Message string `json:"message"`
		} `json:"errors"`
	}
	if x.Status >= http.StatusBadRequest && x.Request.Method != http.MethodHead {
		if err := json.Unmarshal(x.ResponseBody, &body); err != nil {
			return "", outcome, fmt.Errorf("the error body is not the contract's: %q", clip(x.ResponseBody))
		}
		outcome += " " + body.ErrorCode
		messages := []string{body.Error}
		for _, f := range body.Errors {
			messages = append(messages, f.Message)
		}
		for _, m := range messages {
			if !sentence.MatchString(m) {
				return "", outcome, fmt.Errorf("this message is not a sentence: %q", m)
			}
		}
	}
	if err := checkHeaders(x, body.RequestID); err != nil {
		return "", outcome, err
	}

	find := x.Request.Clone(ctx)
	if find.Method == http.MethodHead {
		find.Method = http.MethodGet
	}
	route, params, err := c.router.FindRoute(find)
	if err != nil {
		return "", outcome, c.checkUnrouted(x, outcome)
	}
	if x.Request.Method == http.MethodHead {
		return route.Operation.OperationID, outcome, checkHead(x, route.Operation)
	}
	if !x.InvalidRequest {
		in := &openapi3filter.RequestValidationInput{
			Request: find, PathParams: params, QueryParams: find.URL.Query(), Route: route,
			Options: &openapi3filter.Options{
				ExcludeRequestBody: true, SkipSettingDefaults: true, MultiError: true,
				AuthenticationFunc: openapi3filter.NoopAuthenticationFunc,
			},
		}
		err := openapi3filter.ValidateRequest(ctx, in)
		if err = errors.Join(err, c.checkRequestBody(x, route)); err != nil {
			return route.Operation.OperationID, outcome, fmt.Errorf("the request violates the contract: %w", err)
		}
	}
	if err := c.checkResponse(x, route); err != nil {
		return route.Operation.OperationID, outcome, fmt.Errorf("the answer violates the contract: %w", err)
	}
	return route.Operation.OperationID, outcome, nil
}

// checkRequestBody checks the body of a request with a route.
func (c *Contract) checkRequestBody(x Exchange, route *routers.Route) error {
	ref := route.Operation.RequestBody
	switch {
	case ref == nil:
		return nil
	case len(x.RequestBody) == 0:
		if ref.Value.Required {
			return errors.New("the body is missing")
		}
		return nil
	}
	at := cmp.Or(ref.Ref, operationAt(route)+"/requestBody")
	return c.checkContent(at, ref.Value.Content, x.Request.Header, x.RequestBody)
}

// checkResponse checks the status, the headers and the body of an answer.
func (c *Contract) checkResponse(x Exchange, route *routers.Route) error {
	status := strconv.Itoa(x.Status)
	ref := route.Operation.Responses.Value(status)
	if ref == nil {
		return fmt.Errorf("status %s is not documented", status)
	}
	at := cmp.Or(ref.Ref, operationAt(route)+"/responses/"+status)
	for name, header := range ref.Value.Headers {
		value := x.Header.Get(name)
		if value == "" {
			if header.Value.Required {
				return fmt.Errorf("the header %s is missing", name)
			}
			continue
		}
		var v any = value
		if header.Value.Schema.Value.Type.Is("integer") {
			v = json.Number(value)
		}
		if err := c.schemas.validate(cmp.Or(header.Ref, at+"/headers/"+escape(name))+"/schema", v); err != nil {
			return fmt.Errorf("the header %s: %w", name, err)
		}
	}
	if len(ref.Value.Content) == 0 {
		if len(x.ResponseBody) > 0 {
			return fmt.Errorf("unexpected body: %q", clip(x.ResponseBody))
		}
		return nil
	}
	return c.checkContent(at, ref.Value.Content, x.Header, x.ResponseBody)
}

// operationAt is where the document has the operation of a route.
func operationAt(route *routers.Route) string {
	return "#/paths/" + escape(strings.TrimPrefix(route.Path, basePath)) + "/" + strings.ToLower(route.Method)
}

// checkContent checks a body against the content that the document has at a place.
func (c *Contract) checkContent(at string, content openapi3.Content, header http.Header, body []byte) error {
	sent := header.Get("Content-Type")
	media := content.Get(sent)
	if media == nil {
		return fmt.Errorf("the Content-Type %q is not documented", sent)
	}
	if media.Schema == nil {
		return nil
	}
	for name, m := range content {
		if m != media {
			continue
		}
		v, err := decode(name, body)
		if err != nil {
			return fmt.Errorf("decode the body: %w", err)
		}
		return c.schemas.validate(at+"/content/"+escape(name)+"/schema", v)
	}
	return nil
}

// decode returns what a schema describes of a body: JSON, the fields of a form, or a text.
func decode(contentType string, body []byte) (any, error) {
	switch {
	case strings.Contains(contentType, "json"):
		return jsonschema.UnmarshalJSON(bytes.NewReader(body))
	case contentType != "application/x-www-form-urlencoded":
		return string(body), nil
	}
	form, err := url.ParseQuery(string(body))
	fields := map[string]any{}
	for name := range form {
		fields[name] = form.Get(name)
	}
	return fields, err
}

// checkUnrouted checks exchanges without an operation: preflights, and unknown paths and methods.
func (c *Contract) checkUnrouted(x Exchange, outcome string) error {
	if x.Request.Method == http.MethodOptions {
		if x.Status == http.StatusNoContent && len(x.ResponseBody) == 0 {
			return nil
		}
	}
	if x.Status == http.StatusNotFound && x.Request.Method == http.MethodHead {
		return nil
	}
	if outcome != "404 NOT_FOUND" && outcome != "429 RATE_LIMITED" {
		return fmt.Errorf("%s %s is not in the contract but answers %s instead of 404 NOT_FOUND",
			x.Request.Method, x.Request.URL.EscapedPath(), outcome)
	}
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(x.ResponseBody))
	if err == nil {
		err = c.schemas.validate("#/components/schemas/Error", v)
	}
	if err != nil {
		return fmt.Errorf("the error body violates the contract: %w", err)
	}
	return nil
}

// checkHeaders checks what applies to every answer.
func checkHeaders(x Exchange, requestID string) error {
	id := x.Header.Get("X-Request-Id")
	if id == "" {
		return errors.New("the answer has no X-Request-Id")
	}
	if requestID != "" && requestID != id {
		return fmt.Errorf("request_id is %q but X-Request-Id is %q", requestID, id)
	}
	if len(x.ResponseBody) > 0 && x.Header.Get("Content-Type") == "" {
		return errors.New("the body has no Content-Type")
	}
	if x.Header.Get("Access-Control-Allow-Credentials") != "" {
		return errors.New("CORS allows credentials")
	}
	public := strings.HasPrefix(x.Request.URL.EscapedPath(), basePath+"/public/")
	if origin := x.Header.Get("Access-Control-Allow-Origin"); public && origin != "*" {
		return fmt.Errorf("Access-Control-Allow-Origin of a public path is %q", origin)
	}
	if n := len(x.Header.Values("Access-Control-Allow-Origin")); n > 1 {
		return fmt.Errorf("%d Access-Control-Allow-Origin headers", n)
	}
	return nil
}

func checkHead(x Exchange, op *openapi3.Operation) error {
	if len(x.ResponseBody) > 0 {
		return errors.New("the answer to HEAD has a body")
	}
	if op.Responses.Status(x.Status) == nil {
		return fmt.Errorf("status %d is not documented", x.Status)
	}
	return nil
}

func clip(b []byte) string {
	const most = 400
	if len(b) > most {
		return string(b[:most]) + "…"
	}
	return string(b)
}

// schemas are those of the document. Each is compiled once, when it is needed first: kin-openapi would compile it anew for
// every value.
type schemas struct {
	mu       *sync.Mutex
	compiler *jsonschema.Compiler
	compiled map[string]*jsonschema.Schema // by place
}

// documentURL names the document among the compiler's resources.
const documentURL = "openapi.json"

// newSchemas returns the schemas of a document in YAML.
func newSchemas(document []byte) (schemas, error) {
	var parsed any
	if err := yaml.Unmarshal(document, &parsed); err != nil {
		return schemas{}, fmt.Errorf("parse the OpenAPI document: %w", err)
	}
	raw, err := json.Marshal(parsed)
	if err != nil {
		return schemas{}, fmt.Errorf("convert the OpenAPI document: %w", err)
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(raw))
	if err != nil {
		return schemas{}, fmt.Errorf("parse the OpenAPI document: %w", err)
	}
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	if err := c.AddResource(documentURL, doc); err != nil {
		return schemas{}, fmt.Errorf("add the OpenAPI document: %w", err)
	}
	return schemas{new(sync.Mutex), c, map[string]*jsonschema.Schema{}}, nil
}

// validate checks a value against the schema at a place of the document, a JSON pointer that begins with #.
func (s schemas) validate(at string, value any) error {
	schema, err := s.compile(at)
	if err != nil {
		return fmt.Errorf("compile the schema: %w", err)
	}
	return schema.Validate(value)
}

func (s schemas) compile(at string) (*jsonschema.Schema, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	schema := s.compiled[at]
	if schema == nil {
		var err error
		if schema, err = s.compiler.Compile(documentURL + at); err != nil {
			return nil, err
		}
		s.compiled[at] = schema
	}
	return schema, nil
}

// escape makes a name a part of a JSON pointer in a URL.
func escape(name string) string {
	return url.PathEscape(strings.NewReplacer("~", "~0", "/", "~1").Replace(name))
}

package http

import (
	"strings"

	"waitlist.internal/libs/httpapi"
	"waitlist.internal/services/pages/forms"
)

// input is one field of a form.
type input struct {
	*view
	forms.Question
	Name, Label, Type, Autocomplete, Value, Hint, Error string
	Required                                            bool
}

// Input returns the field called name. The query of a link can fill in an email address.
func (v *view) Input(name, kind, autocomplete string, required bool) (input, error) {
	label := name
	if v.Key == "reset.title" && name == "password" {
		label = "reset.new"
	}
	text, err := v.T(label)
	if err != nil {
		return input{}, err
	}
	f := input{
		view: v, Name: name, Label: text, Type: kind, Autocomplete: autocomplete, Required: required, Error: v.Errors[name],
	}
	switch {
	case kind == "password": // never sent back
	case v.sent != nil:
		f.Value = v.Sent(name)
	case kind == "email":
		f.Value = httpapi.Query(v.c, name)
	}
	switch {
	case kind == "tel":
		f.Hint, err = v.T("phone.hint")
	case autocomplete == "new-password":
		f.Hint, err = v.T("password.hint")
	}
	return f, err
}

// DescribedBy returns the ids of the hint and of the error.
func (f input) DescribedBy() string {
	var ids []string
	if f.Hint != "" {
		ids = append(ids, f.Name+"-hint")
	}
	if f.Error != "" {
		ids = append(ids, f.Name+"-error")
	}
	return strings.Join(ids, " ")
}

// Question returns the field of a waitlist's own question.
func (v *view) Question(q forms.Question) input {
	name := "q." + q.ID
	return input{
		view: v, Question: q, Name: name, Label: q.Label, Type: q.Type, Value: v.Sent(name), Required: q.Required,
		Error: v.Errors["custom_answers."+q.ID],
	}
}

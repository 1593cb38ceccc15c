package signup

import (
	"fmt"
	"slices"
	"strings"

	"waitlist.internal/libs/body"
)

// QuestionType is how a custom question is answered.
type QuestionType string

// The question types.
const (
	// QuestionText is answered by a string.
	QuestionText QuestionType = "text"
	// QuestionDropdown is answered by one of its options.
	QuestionDropdown QuestionType = "dropdown"
	// QuestionCheckbox is answered by a boolean.
	QuestionCheckbox QuestionType = "checkbox"
)

// Question is one custom question of a signup form.
type Question struct {
	// ID is unique within the waitlist and matches [A-Za-z0-9_-]{1,64}.
	ID       string       `json:"id"`
	Label    string       `json:"label"`
	Type     QuestionType `json:"type"`
	Required bool         `json:"required"`
	// Options are 1 to 50 distinct texts of a dropdown; other types have none.
	Options []string `json:"options,omitempty"`
}

// Bounds of custom questions. Lengths are in code points.
const (
	maxQuestions = 10
	maxLabel     = 200
	maxOptions   = 50
	maxOption    = 200
	maxQuestion  = 64
)

// questions reads the custom questions of a settings object.
func questions(o *body.Object, name string) any {
	out := []Question{}
	in, _ := o.Objects(name, maxQuestions)
	for _, q := range in {
		failKeysBut(q, "id", "label", "type", "required", "options")
		question := Question{ID: q.RequiredString("id", maxQuestion), Label: strings.TrimSpace(q.RequiredString("label", maxLabel))}
		if !q.Failed("id") {
			switch {
			case strings.Trim(question.ID, questionIDChars) != "":
				q.Fail("id", "may only have letters, digits, _ and -")
			case slices.ContainsFunc(out, func(other Question) bool { return other.ID == question.ID }):
				q.Fail("id", "must be unique")
			}
		}
		if question.Label == "" && !q.Failed("label") {
			q.Fail("label", "is required")
		}
		question.Type = questionType(q)
		question.Required, _ = q.Bool("required")
		question.Options = options(q, question.Type)
		out = append(out, question)
	}
	return out
}

const questionIDChars = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-"

func questionType(q *body.Object) QuestionType {
	types := []QuestionType{QuestionText, QuestionDropdown, QuestionCheckbox}
	t := QuestionType(q.RequiredString("type", 0))
	if !slices.Contains(types, t) && !q.Failed("type") {
		q.Fail("type", "must be one of "+list(types))
	}
	return t
}

// options reads what a dropdown offers; nothing else has any.
func options(q *body.Object, t QuestionType) []string {
	out, _ := q.Strings("options", maxOptions, maxOption)
	switch {
	case q.Failed("options") || q.Failed("type"):
	case t != QuestionDropdown && len(out) > 0:
		q.Fail("options", "are only for a dropdown")
	case t == QuestionDropdown && len(out) == 0:
		q.Fail("options", fmt.Sprintf("must have 1 to %d entries", maxOptions))
	}
	for i, s := range out {
		switch {
		case strings.TrimSpace(s) == "":
			q.Fail(element("options", i), "must not be empty")
		case slices.Contains(out[:i], s):
			q.Fail(element("options", i), "must be unique")
		}
	}
	if t != QuestionDropdown {
		return nil
	}
	return out
}

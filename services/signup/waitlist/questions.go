package waitlist

import (
	"fmt"
	"slices"
	"strings"

	"waitlist.internal/libs/body"
)

// QuestionType says how a custom question is answered.
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
	// Options are the 1 to 50 distinct texts of a dropdown. Other types have none.
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
				q.Fail("id", "This may contain only letters, digits, _ and -.")
			case slices.ContainsFunc(out, func(other Question) bool { return other.ID == question.ID }):
				q.Fail("id", "Another question has this id.")
			}
		}
		if question.Label == "" && !q.Failed("label") {
			q.Fail("label", body.Required)
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
		q.Fail("type", "Choose "+choices(types)+".")
	}
	return t
}

// options reads the options of a dropdown. Other types have none.
func options(q *body.Object, t QuestionType) []string {
	out, _ := q.Strings("options", maxOptions, maxOption)
	switch {
	case q.Failed("options") || q.Failed("type"):
	case t != QuestionDropdown && len(out) > 0:
		q.Fail("options", "Only a dropdown has options.")
	case t == QuestionDropdown && len(out) == 0:
		q.Fail("options", fmt.Sprintf("This must have 1 to %d entries.", maxOptions))
	}
	for i, s := range out {
		switch {
		case strings.TrimSpace(s) == "":
			q.Fail(element("options", i), "This must not be empty.")
		case slices.Contains(out[:i], s):
			q.Fail(element("options", i), "This option is listed twice.")
		}
	}
	if t != QuestionDropdown {
		return nil
	}
	return out
}

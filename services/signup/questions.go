package signup

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

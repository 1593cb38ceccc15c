module example.com/generated

go 1.26.0

require (
	github.com/oapi-codegen/runtime v1.9.0
	gopkg.in/validator.v2 v2.0.1
)

package http

import "github.com/gin-gonic/gin"

// analyticsRoutes adds analytics to the group of the waitlists.
func (h handler) analyticsRoutes(gin.IRouter) {}

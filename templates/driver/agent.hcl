# Only programs with a block here are started; it is named after the file in the plugin directory.
plugin "{{project-name}}" {
}

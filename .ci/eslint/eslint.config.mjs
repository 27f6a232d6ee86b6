import js from "@eslint/js";
import html from "eslint-plugin-html";
import globals from "globals";

const unused = ["error", { argsIgnorePattern: "^_$", varsIgnorePattern: "^_$" }];

export default [
  { ...js.configs.recommended, files: ["**/*.js", "**/*.html"] },
  { languageOptions: { globals: globals.browser }, rules: { "no-unused-vars": unused } },
  { files: ["**/*.html"], plugins: { html } },
];

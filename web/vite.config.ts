import { gzipSync } from 'node:zlib'
import { defineConfig, type Plugin } from 'vite'

const COMPRESSED = /\.(js|css|html|svg)$/

/** Writes a .gz beside every text file, so that the server compresses nothing. */
function precompress(): Plugin {
  return {
    name: 'precompress',
    generateBundle: {
      order: 'post',
      handler(_, bundle) {
        for (const [name, file] of Object.entries(bundle)) {
          if (!COMPRESSED.test(name)) continue
          const text = file.type === 'chunk' ? file.code : file.source
          this.emitFile({ type: 'asset', fileName: `${name}.gz`, source: gzipSync(text, { level: 9 }) })
        }
      },
    },
  }
}

/** KaTeX names each font in three formats; every browser that runs this page reads woff2. */
function woff2Only(): Plugin {
  return {
    name: 'woff2-only',
    enforce: 'pre',
    transform: (code, id) =>
      id.endsWith('katex.min.css') || id.endsWith('katex.css')
        ? code.replace(/,\s*url\([^)]*\.(?:woff|ttf)\)\s*format\(["'][a-z]+["']\)/g, '')
        : null,
  }
}

export default defineConfig({
  plugins: [woff2Only(), precompress()],
  build: {
    outDir: process.env.TYPEBAR_PAGE_DIR ?? '../src/typebar/web',
    emptyOutDir: true,
    target: ['chrome107', 'firefox104', 'safari16'],
    assetsInlineLimit: 0, // data: addresses would need a wider policy
    modulePreload: { polyfill: false },
    reportCompressedSize: false,
    chunkSizeWarningLimit: 700,
  },
  server: { proxy: Object.fromEntries(['/v1', '/tokenize', '/health', '/metrics'].map((path) => [path, 'http://127.0.0.1:8000'])) },
  test: { include: ['test/**/*.test.{ts,tsx}'] },
} as Parameters<typeof defineConfig>[0])
